/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of items of the engine.  Part of mqtt.h.
 *
 *   mq_line   a queue of items, linked by themselves: adding needs no memory, so no wake-up can be lost
 *   mq_list   an array of numbers: adding may fail
 *
 * An item has a link for each line that it may be in at the same time.  A link is in one line at most.  An
 * item leaves all lines before it is freed.
 */
#ifndef BRIM_MQTT_LISTS_H
#define BRIM_MQTT_LISTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mq_list {
    uint64_t *at;
    uint32_t count, capacity;
} mq_list;

/* Make room for `capacity` numbers.  False: no memory. */
bool mq_list_reserve(mq_list *list, uint32_t capacity);
/* False: no memory.  Never, if room was reserved. */
bool mq_list_add(mq_list *list, uint64_t number);

typedef struct mq_link mq_link;

typedef struct mq_line {
    mq_link *first, *last;
    uint32_t count;
} mq_line;

struct mq_link {
    mq_line *line; /* NULL: none */
    mq_link *previous, *next;
};

/* The item whose member is `link`. */
#define MQ_LINKED(link, type, member) ((type *)(void *)((uint8_t *)(link) - offsetof(type, member)))

/* Leave the line, if it is in one. */
static inline void mq_line_leave(mq_link *link)
{
    mq_line *line = link->line;
    if (line == NULL)
        return;
    *(link->previous != NULL ? &link->previous->next : &line->first) = link->next;
    *(link->next != NULL ? &link->next->previous : &line->last) = link->previous;
    line->count--;
    *link = (mq_link){0};
}

/* Go to the end of `line`, from the line that it is in. */
static inline void mq_line_add(mq_line *line, mq_link *link)
{
    mq_line_leave(link);
    *link = (mq_link){.line = line, .previous = line->last};
    *(line->last != NULL ? &line->last->next : &line->first) = link;
    line->last = link;
    line->count++;
}

/* Take the first out of the line.  NULL: the line is empty. */
static inline mq_link *mq_line_take(mq_line *line)
{
    mq_link *first = line->first;
    if (first != NULL)
        mq_line_leave(first);
    return first;
}

#endif
