/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoder of the usual forms of CONNECT.  Documented in connect.h.
 *
 * Each step reads from `body` and checks its end first.
 */
#include "mqtt/in/connect.h"
#include "mqtt/in/packets.h"

#include <string.h>

#define PROTOCOL_BYTES 7u /* name and level */
#define LEVEL_311 4u
#define LEVEL_5 5u
#define RESERVED_FLAG 1u
#define QOS_SHIFT 3u
#define QOS_MAX 2u

typedef struct mq_body {
    const uint8_t *at, *end;
} mq_body;

static uint32_t left(const mq_body *body)
{
    return (uint32_t)(body->end - body->at);
}

/* Read a big-endian number of up to four bytes. */
static bool number_at(mq_body *body, uint32_t bytes, uint32_t *out)
{
    if (left(body) < bytes)
        return false;
    for (*out = 0; bytes > 0; bytes--)
        *out = *out << 8 | *body->at++;
    return true;
}

static bool binary_at(mq_body *body, mq_text *out)
{
    uint32_t length;
    if (!number_at(body, 2, &length) || left(body) < length)
        return false;
    *out = (mq_text){.at = body->at, .length = length};
    body->at += length;
    return true;
}

static bool string_at(mq_body *body, mq_text *out)
{
    return binary_at(body, out) && mq_is_string(out->at, out->length);
}

/* Read the length of a packet or of properties, in its shortest form. */
static bool length_at(mq_body *body, uint32_t *out)
{
    *out = 0;
    for (uint32_t shift = 0; shift <= 21 && body->at < body->end; shift += 7) {
        uint8_t byte = *body->at++;
        *out |= (uint32_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return byte != 0 || shift == 0;
    }
    return false;
}

/* ---- properties ---- */

static const struct {
    uint8_t identifier, bytes;
    uint32_t min, max;
} PROPERTIES[MQ_CONNECT_PROPERTIES] = {
    [MQ_CONNECT_EXPIRY] = {0x11, 4, 0, UINT32_MAX},   [MQ_CONNECT_RECEIVE_MAX] = {0x21, 2, 1, UINT16_MAX},
    [MQ_CONNECT_PACKET_MAX] = {0x27, 4, 1, UINT32_MAX}, [MQ_CONNECT_ALIAS_MAX] = {0x22, 2, 0, UINT16_MAX},
    [MQ_CONNECT_RESPONSE] = {0x19, 1, 0, 1},          [MQ_CONNECT_PROBLEM] = {0x17, 1, 0, 1},
};

static bool property_at(mq_body *body, mq_connect *out)
{
    uint8_t identifier = *body->at++;
    for (uint32_t i = 0; i < MQ_CONNECT_PROPERTIES; i++) {
        if (PROPERTIES[i].identifier != identifier)
            continue;
        uint32_t value;
        if (out->present & 1u << i || !number_at(body, PROPERTIES[i].bytes, &value) ||
            value < PROPERTIES[i].min || value > PROPERTIES[i].max)
            return false;
        out->present |= 1u << i;
        out->properties[i] = value;
        return true;
    }
    return false;
}

static bool properties_at(mq_body *body, mq_connect *out)
{
    uint32_t length;
    if (!length_at(body, &length) || left(body) < length)
        return false;
    mq_body properties = {.at = body->at, .end = body->at + length};
    body->at += length;
    while (properties.at < properties.end)
        if (!property_at(&properties, out))
            return false;
    return true;
}

/* ---- the packet ---- */

/* Read the fixed header, name and level of the protocol, flags and Keep Alive. */
static bool head_at(mq_body *body, mq_connect *out)
{
    static const uint8_t name[PROTOCOL_BYTES - 1] = {0, 4, 'M', 'Q', 'T', 'T'};
    uint32_t length, keep_alive_s;
    if (left(body) == 0 || *body->at++ != MQ_CONNECT << 4 || !length_at(body, &length) ||
        left(body) != length || length <= PROTOCOL_BYTES || memcmp(body->at, name, sizeof name) != 0)
        return false;
    out->version = body->at[sizeof name];
    out->flags = body->at[PROTOCOL_BYTES];
    body->at += PROTOCOL_BYTES + 1;
    if ((out->version != LEVEL_311 && out->version != LEVEL_5) || !number_at(body, 2, &keep_alive_s))
        return false;
    out->keep_alive_s = (uint16_t)keep_alive_s;
    return true;
}

static bool flags_are_valid(const mq_connect *connect)
{
    uint32_t flags = connect->flags, will_qos = flags >> QOS_SHIFT & 3;
    bool has_will = flags & MQ_CONNECT_WILL;
    return !(flags & RESERVED_FLAG) && will_qos <= QOS_MAX &&
           (has_will || (will_qos == 0 && !(flags & MQ_CONNECT_WILL_RETAIN))) &&
           (connect->version == LEVEL_5 || !(flags & MQ_CONNECT_PASSWORD) || flags & MQ_CONNECT_USERNAME);
}

static bool will_at(mq_body *body, mq_connect *out)
{
    if (out->version == LEVEL_5 && (body->at == body->end || *body->at++ != 0))
        return false;
    const mq_text *topic = &out->will_topic;
    return string_at(body, &out->will_topic) && topic->length > 0 &&
           memchr(topic->at, '+', topic->length) == NULL && memchr(topic->at, '#', topic->length) == NULL &&
           binary_at(body, &out->will_payload);
}

bool mq_connect_decode(const uint8_t *packet, uint32_t length, mq_connect *out)
{
    mq_body body = {.at = packet, .end = packet + length};
    *out = (mq_connect){0};
    if (!head_at(&body, out) || !flags_are_valid(out) ||
        (out->version == LEVEL_5 && !properties_at(&body, out)) || !string_at(&body, &out->client_id))
        return false;
    if (out->client_id.length == 0 && out->version != LEVEL_5 && !(out->flags & MQ_CONNECT_CLEAN))
        return false;
    return (!(out->flags & MQ_CONNECT_WILL) || will_at(&body, out)) &&
           (!(out->flags & MQ_CONNECT_USERNAME) || string_at(&body, &out->username)) &&
           (!(out->flags & MQ_CONNECT_PASSWORD) || binary_at(&body, &out->password)) && body.at == body.end;
}
