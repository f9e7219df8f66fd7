/* SPDX-License-Identifier: Apache-2.0
 *
 * Owners: how much of each shared table counts for one user or address (owners.c).
 */
#ifndef BRIM_MQTT_OWNERS_H
#define BRIM_MQTT_OWNERS_H

#include "mqtt.h"

enum { MQ_OWNER_ADDRESS = 'a' }; /* first byte of a key; any other is a user's */

struct mq_owner {
    mq_item item;
    uint32_t references;
    uint32_t next; /* of those with the same place in engine->owner_table: index + 1; 0: the last */
    uint32_t length;
    uint64_t hash;
    uint8_t *key;
    uint64_t used[MQ_OWNED];
};

/* Publisher of retained messages: facts of a client, as Python wrote them (edge/retained.py). */
struct mq_author {
    uint32_t references, length;
    mq_owner *owner; /* what it retains counts for it; NULL: none */
    uint8_t facts[];
};
/* One reference, and one of it to `owner`; NULL: no facts, or no memory. */
mq_author *mq_author_new(mq_owner *owner, const void *facts, uint32_t length);
mq_author *mq_author_again(mq_author *author); /* one more; NULL stays NULL */
void mq_author_drop(mq_engine *engine, mq_author *author);
static inline mq_owner *mq_author_owner(const mq_author *author)
{
    return author != NULL ? author->owner : NULL;
}

/* The owner of that key, with one reference more; NULL: the key is empty, or there is no memory.  All others
 * take NULL for an owner to which nothing counts. */
mq_owner *mq_owner_take(mq_engine *engine, const void *key, uint32_t length);
mq_owner *mq_owner_of_peer(mq_engine *engine, bool ip6, const uint8_t *address); /* likewise */
mq_owner *mq_owner_again(mq_owner *owner); /* one reference more */
void mq_owner_drop(mq_engine *engine, mq_owner *owner);
mq_owner *mq_owner_find(const mq_engine *engine, const void *key, uint32_t length); /* NULL: there is none */
void mq_owners_free(mq_engine *engine);

/* Whether `owner` may take `more` of a table (MQ_OWNED_*).  A refusal is counted. */
bool mq_owner_may(mq_engine *engine, const mq_owner *owner, uint32_t table, uint64_t more);
/* Whether a connection that is there already may become the owner's. */
bool mq_owner_may_attach(mq_engine *engine, const mq_owner *owner);
void mq_owner_use(mq_owner *owner, uint32_t table, int64_t more);

/* The connection counts for `owner` from now on, whose reference passes to it; NULL: for none. */
void mq_connection_owned(mq_engine *engine, mq_connection *connection, mq_owner *owner, uint32_t table);
/* Likewise a session, with all that counts for it. */
void mq_session_owned(mq_engine *engine, mq_session *session, mq_owner *owner);
void mq_session_lasts(mq_engine *engine, mq_session *session, bool lasts); /* it outlasts its connection */
void mq_session_filters(mq_engine *engine, mq_session *session, uint64_t bytes); /* of its subscriptions */

#endif
