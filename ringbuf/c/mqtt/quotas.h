/* SPDX-License-Identifier: Apache-2.0
 *
 * Quotas: the part of each shared table that one user or address, its owner, may use (quotas.c).
 */
#ifndef BRIM_MQTT_QUOTAS_H
#define BRIM_MQTT_QUOTAS_H

#include "mqtt/mqtt.h"

enum { /* first byte of a key; any other is a user's */
    MQ_OWNER_ADDRESS = 'a',
    MQ_OWNER_OF_TENANT = 't' /* NAME and 0 follow, and the key of the user or address */
};

struct mq_owner {
    mq_item item;
    uint32_t references;
    uint32_t length;
    uint32_t hash;
    bool is_address;
    mq_tenant *tenant; /* charged, too; NULL: none */
    uint8_t *key;
    uint64_t used[MQ_OWNED];
};

/* Publisher of retained messages: data of a client, as encoded by Python
 * (edge/broker/retained_authors.py). */
struct mq_author {
    uint32_t references, length;
    mq_owner *owner; /* charged for its retained messages; NULL: none */
    uint8_t bytes[];
};
/* New author with one reference, which holds a reference to `owner`.  NULL: no data, or no memory. */
mq_author *mq_author_new(mq_owner *owner, const void *bytes, uint32_t length);
mq_author *mq_author_reference(mq_author *author); /* adds a reference; NULL stays NULL */
void mq_author_drop(mq_engine *engine, mq_author *author);
static inline mq_owner *mq_author_owner(const mq_author *author)
{
    return author != NULL ? author->owner : NULL;
}

/* Owner with that key, with an added reference.  NULL: the key is empty, or no memory.  All other functions
 * accept NULL as an owner without charges. */
mq_owner *mq_owner_take(mq_engine *engine, const void *key, uint32_t length);
mq_owner *mq_owner_of_peer(mq_engine *engine, bool ip6, const uint8_t *address); /* likewise */
mq_owner *mq_owner_reference(mq_owner *owner); /* adds a reference */
void mq_owner_drop(mq_engine *engine, mq_owner *owner);
mq_owner *mq_owner_find(const mq_engine *engine, const void *key, uint32_t length); /* NULL: not found */
void mq_owners_free(mq_engine *engine);

/* True if `owner` may use `more` of a table (MQ_OWNED_*).  A refusal is counted. */
bool mq_owner_may(mq_engine *engine, const mq_owner *owner, uint32_t table, uint64_t more);
/* The same; a refusal is not counted. */
bool mq_owner_has_quota(const mq_engine *engine, const mq_owner *owner, uint32_t table, uint64_t more);
/* True if an existing connection may be charged to the owner, in the table OPENING or CONNECTIONS. */
bool mq_owner_may_attach(mq_engine *engine, const mq_owner *owner, uint32_t table);
/* True if `owner` may have one more that another owner of its tenant gives up: the table and the tenant have
 * no more afterwards.  A refusal is counted. */
bool mq_owner_may_inherit(mq_engine *engine, const mq_owner *owner, uint32_t table);
/* As mq_owner_may_attach() for CONNECTIONS; a refusal is not counted. */
bool mq_owner_has_place(const mq_engine *engine, const mq_owner *owner);
/* True if `tenant` may delay one more message, of `bytes`.  A refusal is counted, as one to `owner`. */
bool mq_owner_may_delay(mq_engine *engine, const mq_owner *owner, const mq_tenant *tenant, uint64_t bytes);
void mq_owner_use(mq_owner *owner, uint32_t table, int64_t more);

/* Charge the connection to `owner`, and take over the caller's reference; NULL: to no owner. */
void mq_connection_owned(mq_engine *engine, mq_connection *connection, mq_owner *owner, uint32_t table);
/* Likewise for a session, with everything that is charged for it. */
void mq_session_owned(mq_engine *engine, mq_session *session, mq_owner *owner);
/* set whether it outlasts its connection */
void mq_session_lasts(mq_engine *engine, mq_session *session, bool lasts);
/* set the bytes of its subscriptions */
void mq_session_filters(mq_engine *engine, mq_session *session, uint64_t bytes);

#endif
