/* SPDX-License-Identifier: Apache-2.0
 *
 * Tenants: name spaces of clients (tenants.c).
 */
#ifndef BRIM_MQTT_TENANTS_H
#define BRIM_MQTT_TENANTS_H

#include "mqtt/mqtt.h"

#define MQ_TENANTS_MAX 254u
#define MQ_TENANT_UNKNOWN 255u      /* number of a topic whose tenant is not configured: closed to clients */
#define MQ_TENANT_NAME_MAX_BYTES 24u
#define MQ_TENANT_MARK "$tenant/"
#define MQ_TENANT_MARK_BYTES 8u
#define MQ_TENANT_PREFIX_MAX_BYTES (MQ_TENANT_MARK_BYTES + MQ_TENANT_NAME_MAX_BYTES + 1)

/* A tenant stays as long as the engine.  `prefix` is $tenant/NAME/. */
struct mq_tenant {
    uint8_t number; /* index + 1; 0 stands for clients without a tenant */
    uint8_t prefix_length;
    uint8_t prefix[MQ_TENANT_PREFIX_MAX_BYTES];
    mq_rate bucket;           /* PUBLISH packets of all its clients together */
    uint64_t max[MQ_OWNED];     /* 0: no limit */
    uint64_t used[MQ_OWNED];    /* by its owners; delayed messages: by the tenant itself */
    uint64_t refused[MQ_OWNED]; /* to its owners, at any limit */
    uint64_t published, rate_waits; /* PUBLISH packets handled; times a client was paused by `bucket` */
};

/* Add a tenant, or change its limits: `max` by MQ_OWNED_*.  NULL: no memory, a long name, or too many
 * tenants. */
mq_tenant *mq_tenant_set(mq_engine *engine, const void *name, uint32_t length, const uint64_t *max,
                         uint32_t publish_rate_max);
/* Find the tenant of each topic and owner whose tenant was not configured; after tenants were added. */
void mq_tenants_resolve(mq_engine *engine);
mq_tenant *mq_tenant_numbered(const mq_engine *engine, uint32_t number); /* NULL: 0, or no such tenant */
/* Tenant of an owner with that key; NULL: none, or not configured. */
mq_tenant *mq_tenant_of_owner(const mq_engine *engine, const uint8_t *key, uint32_t length);
void mq_tenants_free(mq_engine *engine);

/* Start of TOPIC in $delayed/SECONDS/TOPIC; 0 for any other name. */
uint32_t mq_topic_delayed_from(const uint8_t *name, uint32_t length);
/* True for the full name of a topic of some tenant. */
bool mq_is_of_tenants(const uint8_t *name, uint32_t length);
/* Number of the tenant of a full topic name; 0 for a topic without a tenant.  `rest`: start of the name after
 * the prefix; 0 without a configured tenant. */
uint8_t mq_tenant_of_topic(const mq_engine *engine, const uint8_t *name, uint32_t length, uint32_t *rest);

/* Full name of a topic that a client of `tenant` publishes to, valid until the next call.  0: it would be
 * longer than a topic may be. */
uint32_t mq_tenant_full_name(mq_engine *engine, const mq_tenant *tenant, const uint8_t *name, uint32_t length,
                             const uint8_t **full);

/* Number of bytes of a topic that the client of this connection does not see. */
static inline uint32_t mq_hidden_bytes(const mq_connection *connection)
{
    return connection->tenant == NULL ? 0 : connection->tenant->prefix_length;
}

/* True if a topic is in the name space of the client. */
static inline bool mq_tenant_has(const mq_connection *connection, const mq_topic *topic)
{
    return topic->tenant == (connection->tenant == NULL ? 0 : connection->tenant->number);
}

/* True if the tenant may use `more` of a table (MQ_OWNED_*); also for NULL. */
bool mq_tenant_has_quota(const mq_tenant *tenant, uint32_t table, uint64_t more);
/* Change the use of a table by the tenant with that name.  False: not configured. */
bool mq_tenant_use(mq_engine *engine, const void *name, uint32_t length, uint32_t table, int64_t more);

/* Delayed messages count for the tenant of their topic from their append on, until Python reports that their
 * store has removed them.  Python adds those from before the start, and then sets `delayed_counted`. */

/* Bytes of a delayed message in its store (edge/delayed/store.py). */
uint64_t mq_delayed_bytes(const mq_topic *topic, const mq_message *message);
/* Count a message that is appended. */
void mq_tenant_delays(mq_engine *engine, const mq_topic *topic, const mq_message *message);

#endif
