/* SPDX-License-Identifier: Apache-2.0
 *
 * Tenants: name spaces of clients, and the use of shared tables by each of them.
 *
 *   a client of the tenant acme sees     the engine, its files and all readers of rings see
 *   pump/1                               $tenant/acme/pump/1
 *   $delayed/30/pump/1                   $delayed/30/$tenant/acme/pump/1
 *
 * A PUBLISH gets its full name when it is read (publish.c), and loses it again when its frame is planned
 * (frame.c).  Filters, wills and client identifiers get theirs in Python.  No wildcard of the first level
 * matches a name that begins with $, so clients without a tenant receive nothing of tenants.
 *
 * Two checks do not depend on the prefix: a client may publish only to a topic with the number of its tenant
 * (acl_cache.c), and gets only records whose topic begins with its prefix (frame.c).
 *
 * The tenant of an owner is in its key: t, NAME, 0, and the key of the user or address
 * (edge/broker/quotas.py).
 */
#include "mqtt/tenants.h"

#include <stdlib.h>

#define DELAYED "$delayed/"
#define DELAYED_BYTES 9u

/* ---- the table ---- */

static mq_tenant *find(const mq_engine *engine, const uint8_t *name, uint32_t length)
{
    for (uint32_t i = 0; i < engine->tenant_count; i++) {
        mq_tenant *tenant = engine->tenants[i];
        if (tenant->prefix_length == MQ_TENANT_MARK_BYTES + length + 1 &&
            memcmp(tenant->prefix + MQ_TENANT_MARK_BYTES, name, length) == 0)
            return tenant;
    }
    return NULL;
}

static mq_tenant *add(mq_engine *engine, const void *name, uint32_t length)
{
    if (length == 0 || length > MQ_TENANT_NAME_MAX_BYTES || engine->tenant_count == MQ_TENANTS_MAX)
        return NULL;
    if (engine->tenants == NULL)
        engine->tenants = calloc(MQ_TENANTS_MAX, sizeof *engine->tenants);
    if (engine->full_name == NULL)
        engine->full_name = malloc(RB_KEY_MAX_BYTES);
    mq_tenant *tenant = engine->tenants == NULL || engine->full_name == NULL ? NULL
                                                                             : calloc(1, sizeof *tenant);
    if (tenant == NULL)
        return NULL;
    memcpy(tenant->prefix, MQ_TENANT_MARK, MQ_TENANT_MARK_BYTES);
    memcpy(tenant->prefix + MQ_TENANT_MARK_BYTES, name, length);
    tenant->prefix[MQ_TENANT_MARK_BYTES + length] = '/';
    tenant->prefix_length = (uint8_t)(MQ_TENANT_MARK_BYTES + length + 1);
    engine->tenants[engine->tenant_count++] = tenant;
    tenant->number = (uint8_t)engine->tenant_count;
    return tenant;
}

mq_tenant *mq_tenant_set(mq_engine *engine, const void *name, uint32_t length, const uint64_t *max,
                         uint32_t publish_rate_max)
{
    mq_tenant *tenant = find(engine, name, length);
    if (tenant == NULL && (tenant = add(engine, name, length)) == NULL)
        return NULL;
    memcpy(tenant->max, max, sizeof tenant->max);
    mq_rate_set(engine, &tenant->bucket, publish_rate_max);
    return tenant;
}

static void owner_resolve(const mq_engine *engine, mq_owner *owner)
{
    owner->tenant = mq_tenant_of_owner(engine, owner->key, owner->length);
    for (uint32_t i = 0; owner->tenant != NULL && i < MQ_OWNED; i++)
        owner->tenant->used[i] += owner->used[i];
}

void mq_tenants_resolve(mq_engine *engine)
{
    for (uint32_t i = 0; i < engine->topics.created; i++) {
        mq_topic *topic = mq_slab_at(&engine->topics, i);
        if (topic->item.generation & 1 && topic->tenant == MQ_TENANT_UNKNOWN)
            mq_topic_classify(engine, topic);
    }
    for (uint32_t i = 0; i < engine->owners.created; i++) {
        mq_owner *owner = mq_slab_at(&engine->owners, i);
        if (owner->item.generation & 1 && owner->tenant == NULL)
            owner_resolve(engine, owner);
    }
}

mq_tenant *mq_tenant_numbered(const mq_engine *engine, uint32_t number)
{
    return number == 0 || number > engine->tenant_count ? NULL : engine->tenants[number - 1];
}

mq_tenant *mq_tenant_of_owner(const mq_engine *engine, const uint8_t *key, uint32_t length)
{
    const uint8_t *end = length > 0 && key[0] == MQ_OWNER_OF_TENANT ? memchr(key, 0, length) : NULL;
    return end == NULL ? NULL : find(engine, key + 1, (uint32_t)(end - key) - 1);
}

void mq_tenants_free(mq_engine *engine)
{
    for (uint32_t i = 0; i < engine->tenant_count; i++)
        free(engine->tenants[i]);
    free(engine->tenants);
    free(engine->full_name);
}

/* ---- names ---- */

/* Start of the third level of a name; 0: the name has fewer levels. */
static uint32_t third_level(const uint8_t *name, uint32_t length)
{
    const uint8_t *end = name + length, *slash = memchr(name, '/', length);
    slash = slash == NULL ? NULL : memchr(slash + 1, '/', (size_t)(end - slash - 1));
    return slash == NULL ? 0 : (uint32_t)(slash + 1 - name);
}

uint32_t mq_topic_delayed_from(const uint8_t *name, uint32_t length)
{
    bool is_delayed = length > DELAYED_BYTES && memcmp(name, DELAYED, DELAYED_BYTES) == 0;
    return is_delayed ? third_level(name, length) : 0;
}

bool mq_is_of_tenants(const uint8_t *name, uint32_t length)
{
    uint32_t from = mq_topic_delayed_from(name, length);
    return length - from >= MQ_TENANT_MARK_BYTES &&
           memcmp(name + from, MQ_TENANT_MARK, MQ_TENANT_MARK_BYTES) == 0;
}

uint8_t mq_tenant_of_topic(const mq_engine *engine, const uint8_t *name, uint32_t length, uint32_t *rest)
{
    *rest = 0;
    if (!mq_is_of_tenants(name, length))
        return 0;
    const uint8_t *own = name + mq_topic_delayed_from(name, length) + MQ_TENANT_MARK_BYTES;
    const uint8_t *end = memchr(own, '/', (size_t)(name + length - own));
    const mq_tenant *tenant = end == NULL ? NULL : find(engine, own, (uint32_t)(end - own));
    if (tenant == NULL)
        return MQ_TENANT_UNKNOWN;
    *rest = (uint32_t)(end + 1 - name);
    return tenant->number;
}

uint32_t mq_tenant_full_name(mq_engine *engine, const mq_tenant *tenant, const uint8_t *name, uint32_t length,
                             const uint8_t **full)
{
    uint32_t prefix = tenant->prefix_length, before = mq_topic_delayed_from(name, length);
    if (length > RB_KEY_MAX_BYTES - prefix)
        return 0;
    memcpy(engine->full_name, name, before);
    memcpy(engine->full_name + before, tenant->prefix, prefix);
    memcpy(engine->full_name + before + prefix, name + before, length - before);
    *full = engine->full_name;
    return prefix + length;
}

bool mq_tenant_use(mq_engine *engine, const void *name, uint32_t length, uint32_t table, int64_t more)
{
    mq_tenant *tenant = find(engine, name, length);
    if (tenant != NULL)
        tenant->used[table] += (uint64_t)more;
    return tenant != NULL;
}

uint64_t mq_delayed_bytes(const mq_topic *topic, const mq_message *message)
{
    return (uint64_t)topic->length - topic->delayed_from + message->properties_length +
           message->payload_length + MQ_DELAYED_OVERHEAD_BYTES;
}

void mq_tenant_delays(mq_engine *engine, const mq_topic *topic, const mq_message *message)
{
    mq_tenant *tenant = mq_tenant_numbered(engine, topic->tenant);
    if (tenant == NULL)
        return;
    tenant->used[MQ_OWNED_DELAYED]++;
    tenant->used[MQ_OWNED_DELAYED_BYTES] += mq_delayed_bytes(topic, message);
}

bool mq_tenant_has_quota(const mq_tenant *tenant, uint32_t table, uint64_t more)
{
    return tenant == NULL || tenant->max[table] == 0 || tenant->used[table] + more <= tenant->max[table];
}
