/* SPDX-License-Identifier: Apache-2.0
 *
 * Trie of topic levels: one node for each level of a name or filter.  Part of mqtt.h.
 */
#ifndef BRIM_MQTT_TRIE_H
#define BRIM_MQTT_TRIE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "mqtt/table.h"

typedef struct mq_engine mq_engine;

enum { /* roots */
    MQ_NAMES = 0,   /* names of topics; value of a node: index of the topic + 1 */
    MQ_FILTERS = 1, /* filters with wildcards; value: index of the first subscription + 1 */
    MQ_EXACT = 2,   /* filters without wildcards: one node for the whole filter; value as above */
    MQ_ROOTS = 3
};

typedef struct mq_node mq_node;
struct mq_node {
    mq_node *parent, *children, *next, *previous; /* parent NULL: a root, or removed */
    uint32_t hash, child_count;
    uint32_t value; /* 0: no name or filter ends here */
    uint32_t walks; /* number of walks that hold the node: a removed one is freed after the last */
    uint16_t length;
    bool has_plus, has_rest; /* has a child `+`, a child `#` */
    bool removed;
    char text[];
};

typedef struct mq_trie {
    mq_node *roots[MQ_ROOTS];
    mq_table table; /* nodes by parent and text */
} mq_trie;

bool mq_trie_open(mq_trie *trie); /* false: no memory */
void mq_trie_free(mq_trie *trie);
/* Child of `parent` with that text; NULL: not there. */
mq_node *mq_trie_child(const mq_engine *engine, const mq_node *parent, const char *text, uint32_t length);
/* Likewise, made if necessary; NULL: no memory. */
mq_node *mq_trie_make(mq_engine *engine, mq_node *parent, const char *text, uint32_t length);
/* Node of a name or filter with all its levels.  `make`: made if necessary.  NULL: not there, or no
 * memory. */
mq_node *mq_trie_path(mq_engine *engine, mq_node *root, const char *text, uint32_t length, bool make);
/* Remove `node` and those above it, up to the first that is in use. */
void mq_trie_prune(mq_engine *engine, mq_node *node);
void mq_trie_release(mq_node *node); /* end of a walk's hold */

/* Length of the level at the begin of `length` bytes. */
static inline uint32_t mq_level_length(const char *text, uint32_t length)
{
    const char *slash = memchr(text, '/', length);
    return slash == NULL ? length : (uint32_t)(slash - text);
}

#endif
