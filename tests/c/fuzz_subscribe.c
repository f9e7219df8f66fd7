/* SPDX-License-Identifier: Apache-2.0
 *
 * The body of a SUBSCRIBE or UNSUBSCRIBE through subscribe.c, and its filters into the subscriptions and out
 * of them.  For libFuzzer.
 *
 *   input   byte 0: version 4 or 5, SUBSCRIBE or UNSUBSCRIBE, few filters allowed or all; the rest: the body
 *
 * A body that is accepted is what its parts make when they are encoded, so nothing was read that is not
 * there, and nothing passed over.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mqtt/in/subscribe.h"
#include "mqtt/in/packets.h"
#include "must.h"

#define FEW 3u

static mq_engine *engine_of(void)
{
    static const mq_limits limits = {.connections_max = 1, .topics_max = 100, .topics_max_bytes = UINT64_MAX};
    const uint64_t seed[2] = {1, 2};
    mq_engine *engine = mq_engine_new(&limits, seed);
    must(engine != NULL, "there is memory");
    engine->topic_max_bytes = 200;
    engine->topic_levels_max = 8;
    return engine;
}

static size_t encode(const mq_plain_filters *filters, uint32_t version, bool has_qos, uint8_t *to)
{
    uint8_t *at = to;
    *at++ = (uint8_t)(filters->identifier >> 8);
    *at++ = (uint8_t)filters->identifier;
    if (version == 5)
        *at++ = 0;
    for (uint32_t i = 0; i < filters->count; i++) {
        const mq_plain_filter *filter = &filters->filter[i];
        *at++ = (uint8_t)(filter->length >> 8);
        *at++ = (uint8_t)filter->length;
        memcpy(at, filter->text, filter->length);
        at += filter->length;
        if (has_qos)
            *at++ = filter->qos;
    }
    return (size_t)(at - to);
}

static void subscribe_and_leave(const mq_plain_filters *filters)
{
    mq_engine *engine = engine_of();
    mq_session *session = mq_slab_take(&engine->sessions);
    must(session != NULL, "there is memory");
    uint64_t handle = mq_handle(&session->item);
    for (uint32_t i = 0; i < filters->count; i++) {
        const mq_plain_filter *filter = &filters->filter[i];
        must(mq_subscription_add(engine, filter->text, filter->length, handle, filter->qos), "it is added");
    }
    uint32_t removed = 0;
    for (uint32_t i = 0; i < filters->count; i++)
        removed += mq_subscription_remove(engine, filters->filter[i].text, filters->filter[i].length, handle);
    must(removed > 0 && removed <= filters->count, "each filter is there once");
    must(engine->subscriptions.live == 0, "no subscription is left");
    mq_slab_give(&engine->sessions, &session->item);
    mq_engine_free(engine);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static mq_plain_filters filters;
    static mq_engine *engine;
    if (size == 0)
        return 0;
    if (engine == NULL)
        engine = engine_of();
    uint32_t version = data[0] & 1 ? 5 : 4, most = data[0] & 4 ? FEW : MQ_PLAIN_FILTERS_MAX;
    bool has_qos = data[0] & 2;
    size_t length = size - 1;
    uint8_t *body = malloc(length), *again = malloc(length + 3); /* read, and written, no further */
    if (length > 0)
        memcpy(body, data + 1, length);
    if (mq_plain_filters_decode(engine, body, length, version, has_qos, most, &filters)) {
        must(filters.count >= 1 && filters.count <= most, "no more filters than allowed");
        must(filters.identifier >= 1 && filters.identifier <= UINT16_MAX, "an identifier has 16 bits");
        must(encode(&filters, version, has_qos, again) == length, "all bytes are parts");
        must(memcmp(again, body, length) == 0, "the parts are those of the body");
        for (uint32_t i = 0; i < filters.count; i++)
            must(filters.filter[i].qos <= 2 && rb_is_utf8((const uint8_t *)filters.filter[i].text,
                                                          filters.filter[i].length),
                 "a filter is a text with a QoS");
        subscribe_and_leave(&filters);
        must(!mq_plain_filters_decode(engine, body, length - 1, version, has_qos, most, &filters),
             "a cut body is invalid");
    }
    free(body);
    free(again);
    return 0;
}
