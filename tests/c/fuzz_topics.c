/* SPDX-License-Identifier: Apache-2.0
 *
 * Topic names and filters against what is plainly right.  For libFuzzer.
 *
 *   input   byte 0 even: the rest is `filter NUL name`: does the matcher say what splitting into levels says?
 *           byte 0 odd: the rest are steps of two bytes, verb and name: does the table of topics hold what a
 *           list holds?
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mqtt/mqtt.h"

static void must(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "not so: %s\n", what);
    abort();
}

/* ---- the matcher ---- */

static size_t level_of(const char *at, const char *end)
{
    const char *slash = memchr(at, '/', (size_t)(end - at));
    return (size_t)((slash ? slash : end) - at);
}

/* Section 4.7.1-2 .. 4.7.1-3, level by level; NULL: there are no more levels. */
static bool matches(const char *f, const char *f_end, const char *n, const char *n_end)
{
    if (f == NULL)
        return n == NULL;
    size_t fl = level_of(f, f_end);
    if (fl == 1 && *f == '#')
        return true;
    if (n == NULL)
        return false;
    size_t nl = level_of(n, n_end);
    if (!(fl == 1 && *f == '+') && (fl != nl || memcmp(f, n, fl) != 0))
        return false;
    return matches(f + fl < f_end ? f + fl + 1 : NULL, f_end, n + nl < n_end ? n + nl + 1 : NULL, n_end);
}

static bool valid_filter(const char *f, const char *f_end)
{
    for (const char *at = f; at < f_end; at++) {
        bool begins = at == f || at[-1] == '/', ends = at + 1 == f_end || at[1] == '/';
        if ((*at == '+' && !(begins && ends)) || (*at == '#' && !(begins && at + 1 == f_end)))
            return false;
    }
    return f < f_end;
}

static void match_once(const uint8_t *data, size_t size)
{
    const uint8_t *nul = memchr(data, 0, size);
    if (nul == NULL)
        return;
    size_t filter_length = (size_t)(nul - data), name_length = size - filter_length - 1;
    char *filter = malloc(filter_length ? filter_length : 1), *name = malloc(name_length ? name_length : 1);
    must(filter != NULL && name != NULL, "there is memory");
    memcpy(filter, data, filter_length);
    memcpy(name, nul + 1, name_length);
    if (name_length > 0 && valid_filter(filter, filter + filter_length) && !memchr(name, '+', name_length) &&
        !memchr(name, '#', name_length)) {
        bool hidden = *name == '$' && (*filter == '+' || *filter == '#'); /* 4.7.2-1 */
        bool right = !hidden && matches(filter, filter + filter_length, name, name + name_length);
        must(mq_filter_matches(filter, (uint32_t)filter_length, name, (uint32_t)name_length) == right,
             "the matcher says what the levels say");
    }
    free(filter);
    free(name);
}

/* ---- the table ---- */

#define NAMES 256u

static void table_agrees(const mq_engine *engine, mq_topic *const model[NAMES])
{
    for (uint32_t i = 0; i < NAMES; i++) {
        uint8_t name = (uint8_t)i;
        must(mq_topic_find(engine, &name, 1) == model[i], "a topic is found when it is there");
    }
}

static void table_run(const uint8_t *data, size_t size)
{
    static const mq_limits limits = {.connections_max = 1, .topics_max = 100, .topics_max_bytes = UINT64_MAX};
    const uint64_t seed[2] = {size, 7};
    mq_topic *model[NAMES] = {0};
    uint32_t held = 0;
    mq_engine *engine = mq_engine_new(&limits, seed);
    must(engine != NULL, "there is memory");
    for (size_t i = 0; i + 1 < size; i += 2) {
        uint8_t name = data[i + 1];
        if (data[i] % 3 == 0 && model[name] != NULL) {
            mq_topic_free(engine, model[name]);
            model[name] = NULL;
            held--;
        } else if (model[name] == NULL) {
            model[name] = mq_topic_add(engine, &name, 1, 0, false);
            must((model[name] != NULL) == (held < limits.topics_max),
                 "a topic is added unless all are taken");
            held += model[name] != NULL;
        }
        must(engine->topics.live == held, "topics are counted");
    }
    table_agrees(engine, model);
    mq_engine_free(engine);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] & 1)
        table_run(data + 1, size - 1);
    else
        match_once(data + 1, size - 1);
    return 0;
}
