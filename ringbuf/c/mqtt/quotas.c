/* SPDX-License-Identifier: Apache-2.0
 *
 * Quotas: the part of each shared table that one user or address, its owner, may use.
 *
 * An owner is a logged-in user or an address (for IPv6 its /64), identified by its key
 * (edge/broker/quotas.py).  It lives while a connection, session, topic or retained message references it.
 * Its use counts for its tenant, too, which has limits of its own.
 *
 * The rule.  An owner may take more of a table if its use is then at most share_percent / (100 -
 * share_percent) times the free rest.  With 75, one owner gets at most three quarters of a table, the next
 * one three quarters of the rest, and so on.  The rule therefore applies only when a table is nearly full,
 * needs no list of owners, and evicts nothing.  Six owners of one attacker can fill a table; then new owners
 * are refused.  The limits in owner_max always apply.  For topics only these apply: a full table forgets idle
 * topics without a loss.
 */
#include "mqtt/quotas.h"

#include <stdlib.h>

#define ADDRESS_BYTES 16u
#define NETWORK_BYTES 8u /* of IPv6: the smallest network of a site */

/* ---- owners by key ---- */

static uint32_t key_hash(const mq_engine *engine, const void *key, uint32_t length)
{
    return (uint32_t)(mq_hash(engine, key, length) >> 32);
}

/* True for the key of an address, also within a tenant. */
static bool is_address(const uint8_t *key, uint32_t length)
{
    const uint8_t *end = *key == MQ_OWNER_OF_TENANT ? memchr(key, 0, length) : NULL;
    const uint8_t *inner = end == NULL ? key : end + 1;
    return inner < key + length && *inner == MQ_OWNER_ADDRESS;
}

static mq_owner *owner_new(mq_engine *engine, const void *key, uint32_t length, uint32_t hash)
{
    uint8_t *copy = malloc(length);
    mq_owner *owner = copy == NULL ? NULL : mq_slab_take(&engine->owners);
    if (owner == NULL || !mq_table_add(&engine->owner_table, hash, owner)) {
        if (owner != NULL)
            mq_slab_give(&engine->owners, &owner->item);
        free(copy);
        return NULL;
    }
    memcpy(copy, key, length);
    owner->key = copy;
    owner->length = length;
    owner->hash = hash;
    owner->tenant = mq_tenant_of_owner(engine, copy, length);
    owner->is_address = is_address(copy, length);
    return owner;
}

mq_owner *mq_owner_find(const mq_engine *engine, const void *key, uint32_t length)
{
    if (length == 0)
        return NULL;
    mq_probe probe = mq_table_probe(&engine->owner_table, key_hash(engine, key, length));
    mq_owner *owner;
    while ((owner = mq_probe_next(&probe)) != NULL)
        if (owner->length == length && memcmp(owner->key, key, length) == 0)
            break;
    return owner;
}

mq_owner *mq_owner_take(mq_engine *engine, const void *key, uint32_t length)
{
    mq_owner *owner = mq_owner_find(engine, key, length);
    if (owner == NULL && length > 0)
        owner = owner_new(engine, key, length, key_hash(engine, key, length));
    return mq_owner_reference(owner);
}

mq_owner *mq_owner_reference(mq_owner *owner)
{
    if (owner != NULL)
        owner->references++;
    return owner;
}

void mq_owner_drop(mq_engine *engine, mq_owner *owner)
{
    if (owner == NULL || --owner->references > 0)
        return;
    mq_table_remove(&engine->owner_table, owner->hash, owner);
    free(owner->key);
    mq_slab_give(&engine->owners, &owner->item);
}

void mq_owners_free(mq_engine *engine)
{
    for (uint32_t i = 0; i < engine->owners.created; i++) {
        mq_owner *owner = mq_slab_at(&engine->owners, i);
        if (owner->item.generation & 1)
            free(owner->key);
    }
    mq_slab_free(&engine->owners);
    mq_table_free(&engine->owner_table, NULL);
}

mq_owner *mq_owner_of_peer(mq_engine *engine, bool ip6, const uint8_t *address)
{
    uint8_t key[1 + ADDRESS_BYTES] = {MQ_OWNER_ADDRESS};
    memcpy(key + 1, address, ip6 ? NETWORK_BYTES : 4);
    return mq_owner_take(engine, key, 1 + (ip6 ? ADDRESS_BYTES : 4));
}

/* ---- authors ---- */

mq_author *mq_author_new(mq_owner *owner, const void *bytes, uint32_t length)
{
    mq_author *author = length == 0 ? NULL : malloc(sizeof *author + length);
    if (author == NULL)
        return NULL;
    *author = (mq_author){.references = 1, .length = length, .owner = mq_owner_reference(owner)};
    memcpy(author->bytes, bytes, length);
    return author;
}

mq_author *mq_author_reference(mq_author *author)
{
    if (author != NULL)
        author->references++;
    return author;
}

void mq_author_drop(mq_engine *engine, mq_author *author)
{
    if (author == NULL || --author->references > 0)
        return;
    mq_owner_drop(engine, author->owner);
    free(author);
}

/* ---- the rule ---- */

static uint64_t room_of(const mq_engine *engine, uint32_t table)
{
    const mq_limits *limits = &engine->limits;
    const uint64_t rooms[MQ_OWNED] = {
        [MQ_OWNED_OPENING] = limits->connections_max,
        [MQ_OWNED_CONNECTIONS] = limits->connections_max,
        [MQ_OWNED_SESSIONS] = limits->sessions_max,
        [MQ_OWNED_FILTER_BYTES] = limits->filters_max_bytes,
        [MQ_OWNED_TOPICS] = limits->topics_max,
        [MQ_OWNED_RETAINED] = limits->retained_max,
        [MQ_OWNED_RETAINED_BYTES] = limits->retained_max_bytes,
        [MQ_OWNED_QUEUE_BYTES] = limits->queues_max_bytes,
    };
    return rooms[table];
}

static uint64_t used_of(const mq_engine *engine, uint32_t table)
{
    const uint64_t used[MQ_OWNED] = {
        [MQ_OWNED_OPENING] = engine->connections.live,
        [MQ_OWNED_CONNECTIONS] = engine->connections.live,
        [MQ_OWNED_SESSIONS] = engine->counters.sessions_kept,
        [MQ_OWNED_FILTER_BYTES] = engine->counters.filter_bytes,
        [MQ_OWNED_TOPICS] = engine->topics.live,
        [MQ_OWNED_RETAINED] = engine->counters.retained + engine->promised_retained,
        [MQ_OWNED_RETAINED_BYTES] = engine->counters.retained_bytes - engine->replaced_bytes +
                                    engine->promised_bytes,
        [MQ_OWNED_QUEUE_BYTES] = engine->counters.queues_bytes,
    };
    return used[table];
}

static bool exceeds_share(const mq_engine *engine, uint32_t table, uint64_t own, uint64_t free_room)
{
    uint64_t percent = engine->limits.share_percent;
    return percent < 100 && table != MQ_OWNED_TOPICS && own * (100 - percent) > free_room * percent;
}

/* Returns false and counts the refusal for Python's report.  A full store of retained messages is reported
 * separately. */
static bool refused(mq_engine *engine, const mq_owner *owner, uint32_t table, bool full)
{
    if (full && (table == MQ_OWNED_RETAINED || table == MQ_OWNED_RETAINED_BYTES))
        return false;
    engine->counters.quota_refused[table]++;
    if (owner != NULL && owner->tenant != NULL)
        owner->tenant->refused[table]++;
    engine->quota_refused_to[table] = owner != NULL ? mq_handle(&owner->item) : 0;
    return false;
}

/* True if `used` of a table exceeds its room.  A full table of topics forgets some. */
static bool is_full(const mq_engine *engine, uint32_t table, uint64_t used)
{
    return used > room_of(engine, table) && table != MQ_OWNED_TOPICS;
}

/* True if `own` of a table is within the quota of `owner` and its share of the room that `used` leaves. */
static bool fits_owner(const mq_engine *engine, const mq_owner *owner, uint32_t table, uint64_t own,
                       uint64_t used)
{
    uint64_t own_max = engine->limits.owner_max[owner->is_address][table];
    return (own_max == 0 || own <= own_max) &&
           !exceeds_share(engine, table, own, room_of(engine, table) - used);
}

/* True if `owner` may have `own` of a table with `used` in use. */
static bool fits(const mq_engine *engine, const mq_owner *owner, uint32_t table, uint64_t own, uint64_t used)
{
    if (is_full(engine, table, used) || owner == NULL)
        return !is_full(engine, table, used);
    return fits_owner(engine, owner, table, own, used) &&
           mq_tenant_has_quota(owner->tenant, table, own - owner->used[table]);
}

static bool within(mq_engine *engine, const mq_owner *owner, uint32_t table, uint64_t own, uint64_t used)
{
    return fits(engine, owner, table, own, used) ||
           refused(engine, owner, table, is_full(engine, table, used));
}

bool mq_owner_has_quota(const mq_engine *engine, const mq_owner *owner, uint32_t table, uint64_t more)
{
    uint64_t own = owner == NULL ? 0 : owner->used[table];
    return fits(engine, owner, table, own + more, used_of(engine, table) + more);
}

bool mq_owner_may(mq_engine *engine, const mq_owner *owner, uint32_t table, uint64_t more)
{
    uint64_t own = owner == NULL ? 0 : owner->used[table];
    return within(engine, owner, table, own + more, used_of(engine, table) + more);
}

bool mq_owner_may_attach(mq_engine *engine, const mq_owner *owner, uint32_t table)
{
    uint64_t own = owner == NULL ? 0 : owner->used[table];
    return within(engine, owner, table, own + 1, used_of(engine, table));
}

bool mq_owner_may_inherit(mq_engine *engine, const mq_owner *owner, uint32_t table)
{
    uint64_t used = used_of(engine, table), room = room_of(engine, table);
    uint64_t others = used > 0 ? used - 1 : 0; /* without the one that the other owner gives up */
    return owner == NULL ||
           fits_owner(engine, owner, table, owner->used[table] + 1, others < room ? others : room) ||
           refused(engine, owner, table, false);
}

bool mq_owner_has_place(const mq_engine *engine, const mq_owner *owner)
{
    uint64_t own = owner == NULL ? 0 : owner->used[MQ_OWNED_CONNECTIONS];
    return fits(engine, owner, MQ_OWNED_CONNECTIONS, own + 1, used_of(engine, MQ_OWNED_CONNECTIONS));
}

bool mq_owner_may_delay(mq_engine *engine, const mq_owner *owner, const mq_tenant *tenant, uint64_t bytes)
{
    if (!mq_tenant_has_quota(tenant, MQ_OWNED_DELAYED, 1))
        return refused(engine, owner, MQ_OWNED_DELAYED, false);
    return mq_tenant_has_quota(tenant, MQ_OWNED_DELAYED_BYTES, bytes) ||
           refused(engine, owner, MQ_OWNED_DELAYED_BYTES, false);
}

void mq_owner_use(mq_owner *owner, uint32_t table, int64_t more)
{
    if (owner == NULL)
        return;
    owner->used[table] += (uint64_t)more;
    if (owner->tenant != NULL)
        owner->tenant->used[table] += (uint64_t)more;
}

/* ---- owners of connections and sessions ---- */

void mq_connection_owned(mq_engine *engine, mq_connection *connection, mq_owner *owner, uint32_t table)
{
    mq_owner_use(connection->owner, connection->owned_as, -1);
    mq_owner_drop(engine, connection->owner);
    connection->owner = owner;
    connection->owned_as = (uint8_t)table;
    mq_owner_use(owner, table, 1);
}

static void session_counts(const mq_session *session, int sign)
{
    mq_owner_use(session->owner, MQ_OWNED_SESSIONS, sign * (int64_t)session->lasts);
    mq_owner_use(session->owner, MQ_OWNED_FILTER_BYTES, sign * (int64_t)session->filter_bytes);
    mq_owner_use(session->owner, MQ_OWNED_QUEUE_BYTES, sign * (int64_t)session->queue_bytes);
}

void mq_session_owned(mq_engine *engine, mq_session *session, mq_owner *owner)
{
    session_counts(session, -1);
    mq_owner_drop(engine, session->owner);
    session->owner = owner;
    session_counts(session, 1);
}

void mq_session_lasts(mq_engine *engine, mq_session *session, bool lasts)
{
    int64_t more = (int64_t)lasts - (int64_t)session->lasts;
    engine->counters.sessions_kept += (uint64_t)more;
    mq_owner_use(session->owner, MQ_OWNED_SESSIONS, more);
    session->lasts = lasts;
}

void mq_session_filters(mq_engine *engine, mq_session *session, uint64_t bytes)
{
    int64_t more = (int64_t)bytes - (int64_t)session->filter_bytes;
    engine->counters.filter_bytes += (uint64_t)more;
    mq_owner_use(session->owner, MQ_OWNED_FILTER_BYTES, more);
    session->filter_bytes = bytes;
}
