/* SPDX-License-Identifier: Apache-2.0
 *
 * Subscriptions of all sessions: filters to sessions.  match_filters.c finds the filters that match a name.
 *
 * Filters without wildcards are nodes below one root, found by one look-up.  Filters with wildcards are paths
 * in the trie.  Subscriptions of a filter are a list; a table by filter and session finds one of them, so a
 * SUBSCRIBE costs the same for any number of other subscribers.
 *
 * A subscription of a session that has ended stays until it is removed, and is found by no match.
 */
#include "base/hash.h"
#include "mqtt/mqtt.h"

#include <stdlib.h>

/* ---- table of subscriptions by filter and session ---- */

static uint32_t hash_of(const mq_engine *engine, const mq_node *filter, uint64_t session)
{
    uint64_t hash = rb_hash_mix((uint64_t)(uintptr_t)filter ^ engine->seed[0], session ^ engine->seed[1]);
    return (uint32_t)(hash >> 16);
}

static mq_subscription *at_number(const mq_engine *engine, uint32_t number)
{
    return mq_slab_at(&engine->subscriptions, number - 1);
}

mq_subscription *mq_subscription_find(const mq_engine *engine, const mq_node *filter, uint64_t session)
{
    mq_probe probe = mq_table_probe(&engine->subscription_table, hash_of(engine, filter, session));
    mq_subscription *subscription;
    while ((subscription = mq_probe_next(&probe)) != NULL)
        if (subscription->filter == filter && subscription->session == session)
            break;
    return subscription;
}

/* ---- subscriptions that come and go ---- */

static bool has_wildcard(const char *filter, uint32_t length)
{
    return memchr(filter, '+', length) != NULL || memchr(filter, '#', length) != NULL;
}

static mq_node *filter_node(mq_engine *engine, const char *filter, uint32_t length, bool make)
{
    if (has_wildcard(filter, length))
        return mq_trie_path(engine, engine->trie.roots[MQ_FILTERS], filter, length, make);
    mq_node *root = engine->trie.roots[MQ_EXACT];
    return make ? mq_trie_make(engine, root, filter, length) : mq_trie_child(engine, root, filter, length);
}

static mq_subscription *make(mq_engine *engine, mq_node *filter, uint64_t session)
{
    mq_slab *slab = &engine->subscriptions;
    mq_subscription *subscription = mq_slab_take(slab);
    if (subscription == NULL)
        return NULL;
    if (!mq_table_add(&engine->subscription_table, hash_of(engine, filter, session), subscription)) {
        mq_slab_give(slab, &subscription->item);
        return NULL;
    }
    uint32_t number = subscription->item.index + 1;
    subscription->filter = filter;
    subscription->session = session;
    subscription->next = filter->value;
    if (subscription->next != 0)
        at_number(engine, subscription->next)->previous = number;
    filter->value = number;
    return subscription;
}

bool mq_subscription_add(mq_engine *engine, const char *filter, uint32_t length, uint64_t session,
                         uint64_t options)
{
    mq_node *node = filter_node(engine, filter, length, true);
    if (node == NULL)
        return false;
    mq_subscription *subscription = mq_subscription_find(engine, node, session);
    if (subscription == NULL && (subscription = make(engine, node, session)) == NULL) {
        mq_trie_prune(engine, node);
        return false;
    }
    subscription->options = options;
    return true;
}

bool mq_subscription_remove(mq_engine *engine, const char *filter, uint32_t length, uint64_t session)
{
    mq_node *node = filter_node(engine, filter, length, false);
    mq_subscription *subscription = node == NULL ? NULL : mq_subscription_find(engine, node, session);
    if (subscription == NULL)
        return false;
    mq_table_remove(&engine->subscription_table, hash_of(engine, node, session), subscription);
    *(subscription->previous != 0 ? &at_number(engine, subscription->previous)->next
                                  : &node->value) = subscription->next;
    if (subscription->next != 0)
        at_number(engine, subscription->next)->previous = subscription->previous;
    mq_slab_give(&engine->subscriptions, &subscription->item);
    mq_trie_prune(engine, node);
    return true;
}

void mq_subscriptions_free(mq_engine *engine)
{
    mq_match_free(&engine->match);
    mq_slab_free(&engine->subscriptions);
    mq_table_free(&engine->subscription_table, NULL);
}
