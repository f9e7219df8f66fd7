/* SPDX-License-Identifier: Apache-2.0
 *
 * Topic names and filters against what is plainly right.  For libFuzzer.
 *
 *   input   byte 0 even: the rest is `filter NUL name`: does the matcher say what splitting into levels says?
 *           byte 0 odd: the rest are steps of two bytes, verb and name: does the table of topics hold what a
 *           list holds?  With bit 1 set, steps of three bytes, verb, filter and session: does a match find
 *           the subscriptions whose filters match, and does it survive all changes between its steps?
 *           In both, an allocation of a step may fail; then nothing has changed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mqtt/mqtt.h"
#include "failing_memory.h"
#include "must.h"

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
            fails_in = data[i] >> 5;
            bool may_fail = fails_in > 0;
            model[name] = mq_topic_add(engine, &name, 1, 0, false);
            fails_in = 0;
            must((model[name] != NULL) == (held < limits.topics_max) || (may_fail && model[name] == NULL),
                 "a topic is added unless all are taken");
            held += model[name] != NULL;
        }
        must(engine->topics.live == held, "topics are counted");
    }
    table_agrees(engine, model);
    mq_engine_free(engine);
}

/* ---- subscriptions ---- */

#define FILTERS 256u
#define SESSIONS 4u

/* Filter of a number: up to four levels of two bits each, and perhaps a last level #. */
static uint32_t filter_of(uint8_t number, char *to)
{
    static const char levels[4] = {'a', 'b', '+', '$'};
    uint32_t length = 0, count = 1 + (number & 3);
    for (uint32_t i = 0; i < count; i++) {
        to[length++] = levels[number >> (2 + 2 * (i % 3)) & 3];
        to[length++] = '/';
    }
    if (number % 5 == 0)
        to[length++] = '#';
    else if (number % 7 != 0)
        length--; /* otherwise the last level is empty */
    return length;
}

typedef struct tree_model {
    bool has[FILTERS][SESSIONS];
    uint64_t sessions[SESSIONS];
} tree_model;

/* Different numbers may be the same filter: it has the subscriptions of all of them. */
static void tree_set(tree_model *model, uint8_t number, uint32_t session, bool has)
{
    char filter[32], its[32];
    uint32_t length = filter_of(number, filter);
    for (uint32_t i = 0; i < FILTERS; i++)
        if (filter_of((uint8_t)i, its) == length && memcmp(filter, its, length) == 0)
            model->has[i][session] = has;
}

static uint32_t tree_count(const tree_model *model, const char *name, uint32_t name_length)
{
    uint32_t count = 0;
    char filter[32], earlier[32];
    for (uint32_t i = 0; i < FILTERS; i++) {
        uint32_t length = filter_of((uint8_t)i, filter), same = 0;
        while (same < i &&
               !(filter_of((uint8_t)same, earlier) == length && memcmp(filter, earlier, length) == 0))
            same++;
        for (uint32_t s = 0; same == i && s < SESSIONS; s++)
            count += model->has[i][s] && mq_filter_matches(filter, length, name, name_length);
    }
    return count;
}

static void tree_agrees(mq_engine *engine, const tree_model *model, uint8_t number)
{
    char name[32];
    uint32_t length = filter_of(number, name), work = UINT32_MAX;
    mq_match match = {0};
    if (memchr(name, '+', length) != NULL || memchr(name, '#', length) != NULL)
        return;
    mq_match_begin(engine, &match, name, length);
    must(mq_match_step(engine, &match, &work) && !match.failed, "a match ends");
    must(match.entry_count == tree_count(model, name, length), "a match finds what matches");
    mq_match_free(&match);
}

static void tree_run(const uint8_t *data, size_t size)
{
    static const mq_limits limits = {.connections_max = 1, .topics_max = 100, .topics_max_bytes = UINT64_MAX};
    const uint64_t seed[2] = {size, 7};
    tree_model *model = calloc(1, sizeof *model);
    mq_engine *engine = mq_engine_new(&limits, seed);
    must(model != NULL && engine != NULL, "there is memory");
    for (uint32_t i = 0; i < SESSIONS; i++)
        model->sessions[i] = mq_handle(mq_slab_take(&engine->sessions));
    mq_match match = {0}; /* continues while filters change */
    mq_match_begin(engine, &match, "a/b/a", 5);
    for (size_t i = 0; i + 2 < size; i += 3) {
        char filter[32];
        uint32_t session = data[i + 2] % SESSIONS, work = data[i] >> 4;
        uint32_t length = filter_of(data[i + 1], filter);
        bool has = data[i] & 1;
        if (has) {
            fails_in = data[i] & 8 ? data[i] >> 5 : 0;
            bool may_fail = fails_in > 0;
            has = mq_subscription_add(engine, filter, length, model->sessions[session], 1);
            fails_in = 0;
            must(has || may_fail, "a subscription is added");
            has |= model->has[data[i + 1]][session]; /* its options would have been replaced */
        } else {
            bool there = mq_subscription_remove(engine, filter, length, model->sessions[session]);
            must(there == model->has[data[i + 1]][session], "a subscription is removed when it is there");
        }
        tree_set(model, data[i + 1], session, has);
        if (mq_match_step(engine, &match, &work) || data[i] & 2) {
            mq_match_reset(&match);
            mq_match_begin(engine, &match, "a/b/a", 5);
        }
        if (data[i] & 4)
            tree_agrees(engine, model, data[i + 1]);
    }
    mq_match_free(&match);
    for (uint32_t i = 0; i < FILTERS; i++)
        for (uint32_t s = 0; s < SESSIONS; s++) {
            char filter[32];
            uint32_t length = filter_of((uint8_t)i, filter);
            mq_subscription_remove(engine, filter, length, model->sessions[s]);
        }
    must(engine->subscriptions.live == 0 && engine->trie.table.count == 0, "nothing is left over");
    mq_engine_free(engine);
    free(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if ((data[0] & 3) == 3)
        tree_run(data + 1, size - 1);
    else if (data[0] & 1)
        table_run(data + 1, size - 1);
    else
        match_once(data + 1, size - 1);
    return 0;
}
