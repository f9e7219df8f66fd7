/* SPDX-License-Identifier: Apache-2.0
 *
 * Match of a filter: the known topics that it matches, found level by level in the trie of names.
 *
 * The cost is the number of branches that are examined.  A filter that needs more than the caller allows is
 * refused: a scan of the table of topics, in pieces, is better then (edge/broker/session_routes.py).
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>

typedef struct branches {
    mq_node **at;
    uint32_t count, capacity;
} branches;

typedef struct search {
    branches level, below;
    uint32_t *topics, count, capacity;
    uint64_t left; /* branches that may still be examined */
    bool failed;   /* no memory */
} search;

static void add_branch(search *search, mq_node *node)
{
    branches *to = &search->below;
    if (to->count == to->capacity) {
        uint32_t capacity = to->capacity ? to->capacity * 2 : 16;
        mq_node **at = realloc(to->at, capacity * sizeof(mq_node *));
        if (at == NULL) {
            search->failed = true;
            return;
        }
        to->at = at;
        to->capacity = capacity;
    }
    to->at[to->count++] = node;
}

static void add_topic(search *search, const mq_node *node)
{
    if (node->value == 0)
        return;
    if (search->count == search->capacity) {
        uint32_t capacity = search->capacity ? search->capacity * 2 : 16;
        uint32_t *topics = realloc(search->topics, capacity * sizeof *topics);
        if (topics == NULL) {
            search->failed = true;
            return;
        }
        search->topics = topics;
        search->capacity = capacity;
    }
    search->topics[search->count++] = node->value - 1;
}

static bool spend(search *search, uint64_t branches)
{
    if (branches > search->left)
        return false;
    search->left -= branches;
    return true;
}

/* True for names that wildcards of the first level do not match [MQTT-4.7.2-1]. */
static bool is_reserved(const mq_node *node)
{
    return node->length > 0 && node->text[0] == '$';
}

static bool all_children(search *search, mq_node *node, bool at_root)
{
    if (!spend(search, node->child_count))
        return false;
    for (mq_node *child = node->children; child != NULL; child = child->next)
        if (!(at_root && is_reserved(child)))
            add_branch(search, child);
    return true;
}

/* Node after `node` in the tree below `top`, each before its children; NULL: the last.  `enter`: with its
 * children. */
static mq_node *following(const mq_node *top, mq_node *node, bool enter)
{
    if (enter && node->children != NULL)
        return node->children;
    while (node != top && node->next == NULL)
        node = node->parent;
    return node == top ? NULL : node->next;
}

/* All topics below a node, and its own: `a/#` also matches `a`. */
static bool everything(search *search, mq_node *top, bool at_root)
{
    for (mq_node *node = top; node != NULL;) {
        if (!spend(search, 1))
            return false;
        bool enter = !(at_root && node->parent == top && is_reserved(node));
        if (enter)
            add_topic(search, node);
        node = following(top, node, enter);
    }
    return true;
}

static bool search_level(const mq_engine *engine, search *search, const char *text, uint32_t length,
                         bool at_root)
{
    bool is_plus = length == 1 && *text == '+';
    for (uint32_t i = 0; i < search->level.count; i++) {
        mq_node *node = search->level.at[i], *child;
        if (is_plus) {
            if (!all_children(search, node, at_root))
                return false;
        } else if (!spend(search, 1)) {
            return false;
        } else if ((child = mq_trie_child(engine, node, text, length)) != NULL) {
            add_branch(search, child);
        }
    }
    return true;
}

/* False: more branches than allowed. */
static bool search_levels(const mq_engine *engine, search *search, const char *filter, uint32_t length)
{
    for (const char *text = filter, *end = filter + length;; text++) {
        uint32_t level = mq_level_length(text, (uint32_t)(end - text));
        bool at_root = text == filter;
        if (level == 1 && *text == '#') {
            for (uint32_t i = 0; i < search->level.count; i++)
                if (!everything(search, search->level.at[i], at_root))
                    return false;
            return true;
        }
        if (!search_level(engine, search, text, level, at_root))
            return false;
        branches done = search->level;
        search->level = search->below;
        search->below = done;
        search->below.count = 0;
        if ((text += level) == end)
            break;
    }
    for (uint32_t i = 0; i < search->level.count; i++)
        add_topic(search, search->level.at[i]);
    return true;
}

mq_topics_result mq_topics_match(mq_engine *engine, const char *filter, uint32_t length,
                                 uint64_t branches_max, uint32_t **topics, uint32_t *count)
{
    search search = {.left = branches_max};
    add_branch(&search, engine->trie.roots[MQ_NAMES]);
    search.level = search.below;
    search.below = (branches){0};
    bool complete = !search.failed && search_levels(engine, &search, filter, length);
    free(search.level.at);
    free(search.below.at);
    if (complete && !search.failed) {
        *topics = search.topics;
        *count = search.count;
        return MQ_TOPICS_FOUND;
    }
    free(search.topics);
    return search.failed ? MQ_TOPICS_NO_MEMORY : MQ_TOPICS_MANY;
}
