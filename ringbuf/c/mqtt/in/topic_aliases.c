/* SPDX-License-Identifier: Apache-2.0
 *
 * Topic aliases of a client: the names that its PUBLISHes stand for.  out/topic_aliases.c has the other
 * direction.
 *
 * A topic alias stands for a name.  The topic found last is cached next to it, with its generation.  If that
 * topic was recycled meanwhile, the name is looked up again, and Python decides again if needed.
 */
#include "mqtt/in/packets.h"

#include <stdlib.h>
#include <string.h>

mq_alias *mq_alias_find(const mq_connection *connection, uint32_t alias)
{
    if (alias > connection->alias_capacity)
        return NULL;
    mq_alias *found = &connection->aliases[alias - 1];
    return found->name == NULL && found->reason == 0 ? NULL : found;
}

mq_topic *mq_alias_topic(mq_engine *engine, mq_connection *connection, mq_alias *alias)
{
    mq_topic *topic = alias->topic;
    if (topic == NULL || topic->item.generation != alias->generation)
        topic = mq_topic_named(engine, connection, alias->name, alias->length);
    else if (!mq_is_last(engine, connection, topic))
        topic = mq_topic_admit(engine, connection, topic);
    if (topic != NULL) {
        alias->topic = topic;
        alias->generation = topic->item.generation;
    }
    return topic;
}

static bool aliases_grow(mq_connection *connection, uint32_t alias)
{
    uint32_t capacity = connection->alias_capacity ? connection->alias_capacity : 4;
    while (capacity < alias)
        capacity *= 2;
    mq_alias *aliases = realloc(connection->aliases, capacity * sizeof *aliases);
    if (aliases == NULL)
        return false;
    memset(aliases + connection->alias_capacity, 0,
           (capacity - connection->alias_capacity) * sizeof *aliases);
    connection->aliases = aliases;
    connection->alias_capacity = capacity;
    return true;
}

/* Clients repeat the same alias and name: no change then. */
bool mq_alias_set(mq_connection *connection, uint32_t alias, const uint8_t *name, uint32_t length)
{
    if (alias > connection->alias_capacity && !aliases_grow(connection, alias))
        return false;
    mq_alias *entry = &connection->aliases[alias - 1];
    if (entry->name != NULL && entry->length == length && memcmp(entry->name, name, length) == 0)
        return true;
    uint8_t *copy = malloc(length);
    if (copy == NULL)
        return false;
    memcpy(copy, name, length);
    free(entry->name);
    *entry = (mq_alias){.name = copy, .length = (uint16_t)length};
    return true;
}

void mq_alias_refuse(mq_alias *alias, uint8_t reason)
{
    free(alias->name);
    *alias = (mq_alias){.reason = reason};
}

void mq_aliases_free(mq_connection *connection)
{
    for (uint32_t i = 0; i < connection->alias_capacity; i++)
        free(connection->aliases[i].name);
    free(connection->aliases);
    connection->aliases = NULL;
    connection->alias_capacity = 0;
}
