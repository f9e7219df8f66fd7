/* SPDX-License-Identifier: Apache-2.0
 *
 * CONNECT in its usual forms: MQTT 3.1.1 and 5, properties of numbers, a will without properties.
 *
 * All other forms, and all invalid packets, are decoded by edge/mqtt/decode.py, the oracle of this decoder.
 */
#ifndef BRIM_MQTT_CONNECT_H
#define BRIM_MQTT_CONNECT_H

#include <stdbool.h>
#include <stdint.h>

enum { /* the connect flags; bits 4-3 are Will QoS */
    MQ_CONNECT_CLEAN = 2,
    MQ_CONNECT_WILL = 4,
    MQ_CONNECT_WILL_RETAIN = 0x20,
    MQ_CONNECT_PASSWORD = 0x40,
    MQ_CONNECT_USERNAME = 0x80
};

enum { /* properties that are decoded */
    MQ_CONNECT_EXPIRY,
    MQ_CONNECT_RECEIVE_MAX,
    MQ_CONNECT_PACKET_MAX,
    MQ_CONNECT_ALIAS_MAX,
    MQ_CONNECT_RESPONSE,
    MQ_CONNECT_PROBLEM,
    MQ_CONNECT_PROPERTIES
};

typedef struct mq_text {
    const uint8_t *at; /* NULL: absent */
    uint32_t length;
} mq_text;

typedef struct mq_connect {
    mq_text client_id, will_topic, will_payload, username, password;
    uint32_t properties[MQ_CONNECT_PROPERTIES];
    uint32_t present; /* bit 1 << MQ_CONNECT_*: the packet has this property */
    uint16_t keep_alive_s;
    uint8_t version, flags;
} mq_connect;

/* Decode a whole packet.  The texts point into it, and are valid UTF-8 without U+0000.  False: it is invalid,
 * or of another form. */
bool mq_connect_decode(const uint8_t *packet, uint32_t length, mq_connect *out);

#endif
