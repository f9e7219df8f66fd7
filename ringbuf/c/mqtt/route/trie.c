/* SPDX-License-Identifier: Apache-2.0
 *
 * Trie of topic levels.  Names, filters with wildcards and other filters each have a root.
 *
 * All nodes are in one table by parent and text, so a step down costs one look-up for any number of children.
 * The hash is keyed, because clients choose the texts.
 *
 * Children are also a list, for walks over all of them.  A walk that is interrupted holds its nodes
 * (mq_node.walks): a removed node has no parent and no children, and stays until the last walk releases it.
 */
#include "base/hash.h"
#include "mqtt/mqtt.h"

#include <stdlib.h>

static uint32_t hash_of(const mq_engine *engine, const mq_node *parent, const char *text, uint32_t length)
{
    uint64_t hash = mq_hash(engine, text, length) ^ (uint64_t)(uintptr_t)parent;
    return (uint32_t)(rb_hash_mix(hash, engine->seed[1] | 1) >> 16);
}

static mq_node *find(const mq_engine *engine, const mq_node *parent, const char *text, uint32_t length,
                     uint32_t hash)
{
    mq_probe probe = mq_table_probe(&engine->trie.table, hash);
    mq_node *node;
    while ((node = mq_probe_next(&probe)) != NULL)
        if (node->parent == parent && node->length == length && memcmp(node->text, text, length) == 0)
            break;
    return node;
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
    uint32_t hash = hash_of(engine, parent, text, length);
    mq_node *node = find(engine, parent, text, length, hash);
    if (node != NULL)
        return node;
    if ((node = malloc(sizeof *node + length)) == NULL || !mq_table_add(&engine->trie.table, hash, node)) {
        free(node);
        return NULL;
    }
    *node = (mq_node){.hash = hash, .length = (uint16_t)length};
    memcpy(node->text, text, length);
    link_to(parent, node);
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
    while (node->parent != NULL && node->value == 0 && node->child_count == 0) {
        mq_node *parent = node->parent;
        mq_table_remove(&engine->trie.table, node->hash, node);
        unlink_from(parent, node);
        if (node->walks == 0)
            free(node);
        node = parent;
    }
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
    return true;
}

void mq_trie_free(mq_trie *trie)
{
    mq_table_free(&trie->table, free);
    for (uint32_t i = 0; i < MQ_ROOTS; i++)
        free(trie->roots[i]);
}
