/* SPDX-License-Identifier: Apache-2.0
 *
 * Plain SUBSCRIBE and UNSUBSCRIBE: see subscribe.h.
 */
#include "mqtt/in/subscribe.h"

#define VERSION_5 5u
#define QOS_MAX 2u

typedef struct cursor {
    const uint8_t *at, *end;
} cursor;

/* Read a 16-bit number.  False: the bytes end before. */
static bool number_at(cursor *body, uint32_t *out)
{
    if (body->end - body->at < 2)
        return false;
    *out = (uint32_t)body->at[0] << 8 | body->at[1];
    body->at += 2;
    return true;
}

/* Read a filter, and its options if `has_qos`.  False: it is not plain. */
static bool filter_at(const mq_engine *engine, cursor *body, bool has_qos, mq_plain_filter *out)
{
    uint32_t length;
    if (!number_at(body, &length) || (size_t)(body->end - body->at) < (size_t)length + has_qos)
        return false;
    *out = (mq_plain_filter){.text = (const char *)body->at, .length = (uint16_t)length};
    body->at += length;
    if (has_qos && (out->qos = *body->at++) > QOS_MAX)
        return false;
    return mq_name_is_ordinary(engine, out->text, length, 0);
}

/* Properties of MQTT 5 must be absent. */
static bool head_at(cursor *body, uint32_t version, uint32_t *identifier)
{
    if (!number_at(body, identifier) || *identifier == 0)
        return false;
    return version != VERSION_5 || (body->at < body->end && *body->at++ == 0);
}

bool mq_plain_filters_decode(const mq_engine *engine, const uint8_t *body, size_t length, uint32_t version,
                             bool has_qos, uint32_t most, mq_plain_filters *out)
{
    cursor left = {.at = body, .end = body + length};
    if (!head_at(&left, version, &out->identifier))
        return false;
    for (out->count = 0; left.at < left.end; out->count++)
        if (out->count == most || !filter_at(engine, &left, has_qos, &out->filter[out->count]))
            return false;
    return out->count > 0;
}
