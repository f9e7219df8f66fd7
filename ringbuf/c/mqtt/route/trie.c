/* SPDX-License-Identifier: Apache-2.0
 *
 * Trie of topic levels.  Names, filters with wildcards and other filters each have a root.
 *
 * All nodes are in one table by parent and text, so a step down costs one look-up for any number of children.
 * The table uses open addressing with linear probing, and is at most three quarters full.  A removal shifts
 * back the entries after it.  The hash is keyed, because clients choose the texts.
 *
 * Children are also a list, for walks over all of them.  A walk that is interrupted holds its nodes
 * (mq_node.walks): a removed node has no parent and no children, and stays until the last walk releases it.
 */
#include "base/hash.h"
#include "mqtt/mqtt.h"

#include <stdlib.h>

#define TABLE_MIN 1024u

static uint32_t hash_of(const mq_engine *engine, const mq_node *parent, const char *text, uint32_t length)
{
    uint64_t hash = mq_hash(engine, text, length) ^ (uint64_t)(uintptr_t)parent;
    return (uint32_t)(rb_hash_mix(hash, engine->seed[1] | 1) >> 16);
}

static void put(mq_trie *trie, mq_edge edge)
{
    uint32_t mask = trie->capacity - 1, at = edge.hash & mask;
    while (trie->table[at].node != NULL)
        at = (at + 1) & mask;
    trie->table[at] = edge;
}

static bool resize(mq_trie *trie, uint32_t capacity)
{
    mq_edge *table = calloc(capacity, sizeof *table), *old = trie->table;
    if (table == NULL)
        return false;
    uint32_t old_capacity = trie->capacity;
    trie->table = table;
    trie->capacity = capacity;
    for (uint32_t i = 0; i < old_capacity; i++)
        if (old[i].node != NULL)
            put(trie, old[i]);
    free(old);
    return true;
}

static void take_out(mq_trie *trie, const mq_node *node)
{
    uint32_t mask = trie->capacity - 1, hole = node->hash & mask;
    while (trie->table[hole].node != node)
        hole = (hole + 1) & mask;
    for (uint32_t at = (hole + 1) & mask; trie->table[at].node != NULL; at = (at + 1) & mask) {
        uint32_t home = trie->table[at].hash & mask;
        if (((at - home) & mask) >= ((at - hole) & mask)) { /* its home is not after the hole */
            trie->table[hole] = trie->table[at];
            hole = at;
        }
    }
    trie->table[hole].node = NULL;
    trie->count--;
}

static mq_node *find(const mq_engine *engine, const mq_node *parent, const char *text, uint32_t length,
                     uint32_t hash)
{
    const mq_trie *trie = &engine->trie;
    uint32_t mask = trie->capacity - 1;
    for (uint32_t at = hash & mask; trie->table[at].node != NULL; at = (at + 1) & mask) {
        mq_node *node = trie->table[at].node;
        if (trie->table[at].hash == hash && node->parent == parent && node->length == length &&
            memcmp(node->text, text, length) == 0)
            return node;
    }
    return NULL;
}

mq_node *mq_trie_child(const mq_engine *engine, const mq_node *parent, const char *text, uint32_t length)
{
    if (parent->child_count == 0)
        return NULL;
    return find(engine, parent, text, length, hash_of(engine, parent, text, length));
}

static void link_to(mq_node *parent, mq_node *node)
{
    node->parent = parent;
    node->next = parent->children;
    if (node->next != NULL)
        node->next->previous = node;
    parent->children = node;
    parent->child_count++;
    parent->has_plus |= node->length == 1 && node->text[0] == '+';
    parent->has_rest |= node->length == 1 && node->text[0] == '#';
}

mq_node *mq_trie_make(mq_engine *engine, mq_node *parent, const char *text, uint32_t length)
{
    mq_trie *trie = &engine->trie;
    uint32_t hash = hash_of(engine, parent, text, length);
    mq_node *node = find(engine, parent, text, length, hash);
    if (node != NULL)
        return node;
    if (trie->count >= trie->capacity / 4 * 3 && !resize(trie, trie->capacity * 2))
        return NULL;
    if ((node = malloc(sizeof *node + length)) == NULL)
        return NULL;
    *node = (mq_node){.hash = hash, .length = (uint16_t)length};
    memcpy(node->text, text, length);
    link_to(parent, node);
    put(trie, (mq_edge){.node = node, .hash = hash});
    trie->count++;
    return node;
}

mq_node *mq_trie_path(mq_engine *engine, mq_node *root, const char *text, uint32_t length, bool make)
{
    mq_node *node = root;
    for (const char *end = text + length;; text++) {
        uint32_t level = mq_level_length(text, (uint32_t)(end - text));
        mq_node *below = make ? mq_trie_make(engine, node, text, level)
                              : mq_trie_child(engine, node, text, level);
        if (below == NULL && make)
            mq_trie_prune(engine, node);
        node = below;
        text += level;
        if (node == NULL || text == end)
            return node;
    }
}

static void unlink_from(mq_node *parent, mq_node *node)
{
    *(node->previous != NULL ? &node->previous->next : &parent->children) = node->next;
    if (node->next != NULL)
        node->next->previous = node->previous;
    parent->child_count--;
    parent->has_plus &= !(node->length == 1 && node->text[0] == '+');
    parent->has_rest &= !(node->length == 1 && node->text[0] == '#');
    node->parent = node->next = node->previous = NULL;
    node->removed = true;
}

void mq_trie_prune(mq_engine *engine, mq_node *node)
{
    mq_trie *trie = &engine->trie;
    while (node->parent != NULL && node->value == 0 && node->child_count == 0) {
        mq_node *parent = node->parent;
        take_out(trie, node);
        unlink_from(parent, node);
        if (node->walks == 0)
            free(node);
        node = parent;
    }
    if (trie->capacity > TABLE_MIN && trie->count < trie->capacity / 8)
        resize(trie, trie->capacity / 2); /* without memory the table stays as it is */
}

void mq_trie_release(mq_node *node)
{
    if (--node->walks == 0 && node->removed)
        free(node);
}

bool mq_trie_open(mq_trie *trie)
{
    for (uint32_t i = 0; i < MQ_ROOTS; i++)
        if ((trie->roots[i] = calloc(1, sizeof(mq_node))) == NULL)
            return false;
    return resize(trie, TABLE_MIN);
}

void mq_trie_free(mq_trie *trie)
{
    for (uint32_t i = 0; i < trie->capacity; i++)
        free(trie->table[i].node);
    for (uint32_t i = 0; i < MQ_ROOTS; i++)
        free(trie->roots[i]);
    free(trie->table);
}
