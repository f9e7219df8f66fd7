/* SPDX-License-Identifier: Apache-2.0
 *
 * MQTT 5 properties of PUBLISH and of acknowledgements: checked completely, and converted for a record.
 *
 *   length       variable byte integer: length of the rest
 *   Message Expiry Interval, if present, at this fixed place
 *   others       unchanged and in order, without Topic Alias, which belongs to the connection
 *
 * Properties already in that form are not copied.  A PUBLISH without properties calls no function of this
 * file.  Errors are the same as in edge.mqtt.properties, in the same order: the first one in the bytes.
 */
#include "mqtt/in/packets.h"

#include <stdlib.h>
#include <string.h>

enum {
    PAYLOAD_FORMAT = 0x01,
    MESSAGE_EXPIRY = 0x02,
    CONTENT_TYPE = 0x03,
    RESPONSE_TOPIC = 0x08,
    CORRELATION_DATA = 0x09,
    SUBSCRIPTION_IDENTIFIER = 0x0b,
    REASON_STRING = 0x1f,
    TOPIC_ALIAS = 0x23,
    USER_PROPERTY = 0x26,
    IDENTIFIERS = 0x40 /* above all identifiers */
};

#define BIT(identifier) ((uint64_t)1 << (identifier))
#define OF_PUBLISH                                                                         \
    (BIT(PAYLOAD_FORMAT) | BIT(MESSAGE_EXPIRY) | BIT(CONTENT_TYPE) | BIT(RESPONSE_TOPIC) | \
     BIT(CORRELATION_DATA) | BIT(SUBSCRIPTION_IDENTIFIER) | BIT(TOPIC_ALIAS) | BIT(USER_PROPERTY))
#define OF_ACK (BIT(REASON_STRING) | BIT(USER_PROPERTY))
#define REPEATABLE (BIT(SUBSCRIPTION_IDENTIFIER) | BIT(USER_PROPERTY))

#define EXPIRY_BYTES 5u
#define ALIAS_BYTES 3u
#define LENGTH_MAX_BYTES 4u
#define SCRATCH_MIN_BYTES 4096u

/* Length of the variable byte integer in at .. end; 0: it is incomplete, or not in its shortest form
 * [MQTT-1.5.5-1]. */
static uint32_t variable_integer(const uint8_t *at, const uint8_t *end, uint32_t *value)
{
    *value = 0;
    for (uint32_t i = 0; i < LENGTH_MAX_BYTES && at + i < end; i++) {
        *value |= (uint32_t)(at[i] & 0x7f) << 7 * i;
        if (!(at[i] & 0x80))
            return i > 0 && at[i] == 0 ? 0 : i + 1;
    }
    return 0;
}

/* Length of the string or binary value in at .. end, with its length field; 0: malformed. */
static uint32_t lengthed(const uint8_t *at, const uint8_t *end, bool text)
{
    if (end - at < 2 || end - at - 2 < (ptrdiff_t)mq_uint16_at(at))
        return 0;
    uint32_t length = mq_uint16_at(at);
    return text && !mq_is_string(at + 2, length) ? 0 : 2 + length;
}

static uint32_t pair(const uint8_t *at, const uint8_t *end)
{
    uint32_t name = lengthed(at, end, true), value = name == 0 ? 0 : lengthed(at + name, end, true);
    return value == 0 ? 0 : name + value;
}

/* Length of the value at `at` of a permitted property; 0: malformed. */
static uint32_t value_bytes(uint32_t identifier, const uint8_t *at, const uint8_t *end)
{
    uint32_t unused, fixed = 0;
    switch (identifier) {
    case PAYLOAD_FORMAT:
        fixed = 1;
        break;
    case MESSAGE_EXPIRY:
        fixed = EXPIRY_BYTES - 1;
        break;
    case TOPIC_ALIAS:
        fixed = ALIAS_BYTES - 1;
        break;
    case SUBSCRIPTION_IDENTIFIER:
        return variable_integer(at, end, &unused);
    case USER_PROPERTY:
        return pair(at, end);
    default:
        return lengthed(at, end, identifier != CORRELATION_DATA);
    }
    return end - at < (ptrdiff_t)fixed ? 0 : fixed;
}

typedef struct property {
    uint32_t identifier, length; /* of the value */
    const uint8_t *value;
} property;

/* Read the property at `at`, which is before `end`.  0, or MQ_CLOSE_*: malformed, not permitted in this
 * packet, or a duplicate. */
static uint32_t property_at(const uint8_t *at, const uint8_t *end, uint64_t allowed, uint64_t *seen,
                            property *out)
{
    *out = (property){.identifier = at[0], .value = at + 1};
    if (at[0] >= IDENTIFIERS || !(allowed & BIT(at[0])))
        return MQ_CLOSE_MALFORMED;
    out->length = value_bytes(at[0], at + 1, end);
    if (out->length == 0)
        return MQ_CLOSE_MALFORMED;
    if (*seen & BIT(at[0]) & ~REPEATABLE)
        return MQ_CLOSE_PROTOCOL;
    *seen |= BIT(at[0]);
    return 0;
}

/* True if a Response Topic has no wildcards [MQTT-3.3.2-14], and at least one character [MQTT-4.7.3-1]. */
static bool is_topic(const uint8_t *name, uint32_t length)
{
    return length > 0 && memchr(name, '+', length) == NULL && memchr(name, '#', length) == NULL;
}

/* Check the value of a property of a PUBLISH beyond its type, and store it. */
static uint32_t value_take(const property *property, mq_properties *out)
{
    const uint8_t *value = property->value;
    switch (property->identifier) {
    case PAYLOAD_FORMAT:
        out->text = value[0] == 1;
        return value[0] > 1 ? MQ_CLOSE_PROTOCOL : 0;
    case TOPIC_ALIAS: /* 3.3.2-8 */
        out->alias = (uint16_t)mq_uint16_at(value);
        return out->alias == 0 ? MQ_CLOSE_ALIAS : 0;
    case SUBSCRIPTION_IDENTIFIER:
        out->subscriptions = true;
        return value[0] == 0 ? MQ_CLOSE_PROTOCOL : 0;
    case RESPONSE_TOPIC:
        return is_topic(value + 2, property->length - 2) ? 0 : MQ_CLOSE_PROTOCOL;
    default:
        return 0;
    }
}

static bool scratch_reserve(mq_engine *engine, uint32_t bytes)
{
    if (engine->scratch_capacity >= bytes)
        return true;
    uint32_t capacity = bytes < SCRATCH_MIN_BYTES ? SCRATCH_MIN_BYTES : bytes;
    uint8_t *scratch = malloc(capacity);
    if (scratch == NULL)
        return false;
    free(engine->scratch);
    engine->scratch = scratch;
    engine->scratch_capacity = capacity;
    return true;
}

/* Append at .. end without the `length` bytes at `without`, if that is not NULL and inside. */
static uint8_t *copy(uint8_t *to, const uint8_t *at, const uint8_t *end, const uint8_t *without,
                     uint32_t length)
{
    const uint8_t *until = without != NULL && without >= at && without < end ? without : end;
    memcpy(to, at, (size_t)(until - at));
    to += until - at;
    if (until == end)
        return to;
    memcpy(to, until + length, (size_t)(end - until - length));
    return to + (end - until - length);
}

/* Convert the properties in at .. end to the form of a record.  `expiry` and `alias` point to these two, or
 * are NULL. */
static uint32_t normalize(mq_engine *engine, const uint8_t *at, const uint8_t *expiry, const uint8_t *alias,
                          mq_properties *out)
{
    uint32_t length = (uint32_t)(out->end - at) - (alias == NULL ? 0 : ALIAS_BYTES);
    if (length == 0)
        return 0;
    if (!scratch_reserve(engine, LENGTH_MAX_BYTES + length))
        return MQ_CLOSE_MEMORY;
    uint8_t *to = mq_variable_put(engine->scratch, length);
    if (expiry == NULL) {
        to = copy(to, at, out->end, alias, ALIAS_BYTES);
    } else {
        memcpy(to, expiry, EXPIRY_BYTES);
        to = copy(to + EXPIRY_BYTES, at, expiry, alias, ALIAS_BYTES);
        to = copy(to, expiry + EXPIRY_BYTES, out->end, alias, ALIAS_BYTES);
    }
    out->stored = engine->scratch;
    out->stored_length = (uint32_t)(to - engine->scratch);
    out->flags |= RB_FLAG_PROPERTIES;
    return 0;
}

uint32_t mq_properties_of_publish(mq_engine *engine, const uint8_t *at, const uint8_t *end,
                                  mq_properties *out)
{
    uint32_t length, size = variable_integer(at, end, &length);
    *out = (mq_properties){0};
    if (size == 0 || length > (size_t)(end - at - size))
        return MQ_CLOSE_MALFORMED;
    const uint8_t *begin = at + size, *next = begin, *expiry = NULL, *alias = NULL;
    out->end = begin + length;
    uint64_t seen = 0;
    while (next < out->end) {
        property property;
        uint32_t cause = property_at(next, out->end, OF_PUBLISH, &seen, &property);
        if (cause == 0)
            cause = value_take(&property, out);
        if (cause != 0)
            return cause;
        if (property.identifier == MESSAGE_EXPIRY)
            expiry = next;
        else if (property.identifier == TOPIC_ALIAS)
            alias = next;
        next = property.value + property.length;
    }
    if (expiry != NULL)
        out->flags |= RB_FLAG_EXPIRY;
    if (alias != NULL || (expiry != NULL && expiry != begin))
        return normalize(engine, begin, expiry, alias, out);
    if (length > 0) {
        out->stored = at;
        out->stored_length = size + length;
        out->flags |= RB_FLAG_PROPERTIES;
    }
    return 0;
}

uint32_t mq_properties_of_ack(const uint8_t *at, const uint8_t *end)
{
    uint32_t length, size = variable_integer(at, end, &length);
    if (size == 0 || length > (size_t)(end - at - size))
        return MQ_CLOSE_MALFORMED;
    const uint8_t *next = at + size, *last = next + length;
    uint64_t seen = 0;
    while (next < last) {
        property property;
        uint32_t cause = property_at(next, last, OF_ACK, &seen, &property);
        if (cause != 0)
            return cause;
        next = property.value + property.length;
    }
    return last == end ? 0 : MQ_CLOSE_MALFORMED;
}
