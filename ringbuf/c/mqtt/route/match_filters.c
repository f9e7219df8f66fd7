/* SPDX-License-Identifier: Apache-2.0
 *
 * Match of a topic name: a walk down the trie of filters, to the subscriptions whose filters match.
 *
 * A match examines at most the nodes of the trie, and the subscriptions of filters that match.  Clients can
 * make both large, so a match is a walk that may be continued later.  It holds its nodes meanwhile.  Filters
 * that change during the walk may be found or not: the caller must detect that (edge/broker/router.py).
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>

static void *grown(void *at, uint32_t *capacity, size_t item_bytes)
{
    uint32_t more = *capacity ? *capacity * 2 : 16;
    void *larger = realloc(at, more * item_bytes);
    if (larger != NULL)
        *capacity = more;
    return larger;
}

static void hold(mq_match *match, mq_nodes *nodes, mq_node *node)
{
    if (nodes->count == nodes->capacity) {
        mq_node **at = grown(nodes->at, &nodes->capacity, sizeof(mq_node *));
        if (at == NULL) {
            match->failed = true;
            return;
        }
        nodes->at = at;
    }
    node->walks++;
    nodes->at[nodes->count++] = node;
}

static void release(mq_nodes *nodes)
{
    for (uint32_t i = 0; i < nodes->count; i++)
        mq_trie_release(nodes->at[i]);
    nodes->count = 0;
}

static void matches(mq_match *match, mq_node *filter)
{
    if (filter != NULL && filter->value != 0)
        hold(match, &match->matched, filter);
}

void mq_match_begin(mq_engine *engine, mq_match *match, const char *name, uint32_t length)
{
    match->name = name;
    match->length = length;
    matches(match, mq_trie_child(engine, engine->trie.roots[MQ_EXACT], name, length));
    if (engine->trie.roots[MQ_FILTERS]->child_count > 0)
        hold(match, &match->level, engine->trie.roots[MQ_FILTERS]);
    else
        match->ended = true;
}

/* Step from a node along one level of the name.  Wildcards of the first level do not match names that begin
 * with $ [MQTT-4.7.2-1]. */
static void step_down(mq_engine *engine, mq_match *match, mq_node *node, uint32_t level)
{
    bool wild = match->at > 0 || match->name[0] != '$';
    if (wild && node->has_rest)
        matches(match, mq_trie_child(engine, node, "#", 1));
    if (wild && node->has_plus)
        hold(match, &match->below, mq_trie_child(engine, node, "+", 1));
    mq_node *child = mq_trie_child(engine, node, match->name + match->at, level);
    if (child != NULL)
        hold(match, &match->below, child);
}

/* The name ends at these nodes; `a/#` also matches `a`. */
static void end_at(mq_engine *engine, mq_match *match, mq_node *node)
{
    matches(match, node);
    if (node->has_rest)
        matches(match, mq_trie_child(engine, node, "#", 1));
}

/* One node per unit of work.  False: there are more. */
static bool walk_levels(mq_engine *engine, mq_match *match, uint32_t *work)
{
    while (!match->ended && !match->failed) {
        bool at_end = match->at > match->length;
        uint32_t level = at_end ? 0 : mq_level_length(match->name + match->at, match->length - match->at);
        for (; match->level_at < match->level.count && !match->failed; match->level_at++) {
            if (*work == 0)
                return false;
            --*work;
            mq_node *node = match->level.at[match->level_at];
            if (at_end)
                end_at(engine, match, node);
            else
                step_down(engine, match, node, level);
        }
        release(&match->level);
        mq_nodes level_nodes = match->level;
        match->level = match->below;
        match->below = level_nodes;
        match->level_at = 0;
        match->at += level + 1;
        match->ended = at_end || match->level.count == 0;
    }
    return true;
}

static void add_entry(const mq_engine *engine, mq_match *match, const mq_subscription *subscription)
{
    if (subscription == NULL || mq_slab_get(&engine->sessions, subscription->session) == NULL)
        return;
    if (match->entry_count == match->entry_capacity) {
        mq_match_entry *at = grown(match->entries, &match->entry_capacity, sizeof *at);
        if (at == NULL) {
            match->failed = true;
            return;
        }
        match->entries = at;
    }
    match->entries[match->entry_count++] = (mq_match_entry){.session = subscription->session,
                                                            .options = subscription->options};
}

/* All subscriptions of a filter at once.  False: there are more filters. */
static bool read_subscriptions(mq_engine *engine, mq_match *match, uint32_t *work)
{
    for (; match->matched_at < match->matched.count && !match->failed; match->matched_at++) {
        if (*work == 0)
            return false;
        const mq_node *filter = match->matched.at[match->matched_at];
        if (match->session != 0) {
            --*work;
            add_entry(engine, match, mq_subscription_find(engine, filter, match->session));
            continue;
        }
        for (uint32_t number = filter->value; number != 0;) {
            const mq_subscription *subscription = mq_slab_at(&engine->subscriptions, number - 1);
            add_entry(engine, match, subscription);
            number = subscription->next;
            *work -= *work > 0;
        }
    }
    return true;
}

bool mq_match_step(mq_engine *engine, mq_match *match, uint32_t *work)
{
    return (walk_levels(engine, match, work) && read_subscriptions(engine, match, work)) || match->failed;
}

void mq_match_reset(mq_match *match)
{
    release(&match->level);
    release(&match->below);
    release(&match->matched);
    match->level_at = match->matched_at = match->at = match->entry_count = 0;
    match->session = 0;
    match->ended = match->failed = false;
}

void mq_match_free(mq_match *match)
{
    mq_match_reset(match);
    free(match->level.at);
    free(match->below.at);
    free(match->matched.at);
    free(match->entries);
}
