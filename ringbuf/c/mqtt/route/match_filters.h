/* SPDX-License-Identifier: Apache-2.0
 *
 * Match of a topic name: the subscriptions whose filters match it.  Part of mqtt.h.
 */
#ifndef BRIM_MQTT_MATCH_FILTERS_H
#define BRIM_MQTT_MATCH_FILTERS_H

#include "mqtt/route/trie.h"

#define MQ_MATCH_WORK 1024u /* nodes and subscriptions that the parser examines for one topic */

typedef struct mq_match_entry {
    uint64_t session, options;
    uint32_t next, last; /* in the list of one session: index + 1; `last` is set in the first entry */
} mq_match_entry;

typedef struct mq_nodes {
    mq_node **at;
    uint32_t count, capacity;
} mq_nodes;

/* Walk over the filters that match one name.  Zeros to begin. */
typedef struct mq_match {
    mq_nodes level, below; /* nodes of this level; of the next one */
    mq_nodes matched;      /* filters that match, with subscriptions still to be read */
    uint32_t level_at, matched_at;
    const char *name; /* must outlive the walk */
    uint32_t length, at;
    uint64_t session; /* only its subscriptions are found; 0: of all */
    bool ended;       /* the levels are done */
    bool failed;      /* no memory */
    mq_match_entry *entries;
    uint32_t entry_count, entry_capacity;
} mq_match;

void mq_match_begin(mq_engine *engine, mq_match *match, const char *name, uint32_t length);
/* Continue for about *work nodes and subscriptions, which are subtracted.  True: the match is complete, or
 * has failed. */
bool mq_match_step(mq_engine *engine, mq_match *match, uint32_t *work);
void mq_match_reset(mq_match *match); /* ends the walk; its memory is used again */
void mq_match_free(mq_match *match);

/* merge_routes.c.  Remove the subscriptions of `count` sessions, given by their handles. */
void mq_match_without(mq_engine *engine, mq_match *match, const void *sessions, uint32_t count);
/* Add the routes of a complete match to a topic that has none to these sessions.  False: no
 * memory. */
bool mq_match_routes(mq_engine *engine, const mq_match *match, mq_topic *topic);

#endif
