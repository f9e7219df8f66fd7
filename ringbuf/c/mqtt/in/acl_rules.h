/* SPDX-License-Identifier: Apache-2.0
 *
 * Access rules of one client: the right to publish to a topic, or to receive it, decided without Python.
 *
 * Packed by edge/auth/packed_rules.py, which has the format.  At most 4 KiB for a connection.
 */
#ifndef BRIM_MQTT_ACL_RULES_H
#define BRIM_MQTT_ACL_RULES_H

#include "mqtt/mqtt.h"

enum { /* access of a rule */
    MQ_ACL_ALLOW = 1,
    MQ_ACL_DENY = 2
};

typedef struct mq_acl_rules {
    uint32_t length, count;
    uint8_t at[];
} mq_acl_rules;

/* A copy of packed rules.  NULL: they are malformed, or no memory. */
mq_acl_rules *mq_acl_rules_new(const uint8_t *packed, uint32_t length);

/* True if a rule allows `name`, and no rule denies it. */
bool mq_acl_rules_allow(const mq_acl_rules *rules, const void *name, uint32_t length);

/* Decide by `rules` until the rules change; owned by the connection from now on.  NULL: Python decides. */
void mq_acl_rules_set(mq_engine *engine, mq_connection *connection, mq_acl_rules *rules);

#endif
