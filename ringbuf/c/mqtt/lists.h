/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of items of the engine.  Part of mqtt.h.
 *
 *   mq_fifo   a FIFO of items, linked by themselves: adding needs no memory, so no wake-up can be lost
 *   mq_list   an array of numbers: adding may fail
 *
 * An item has a link for each FIFO that it may be in at the same time.  A link is in one FIFO at most.  An
 * item leaves all FIFOs before it is freed.
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

typedef struct mq_fifo {
    mq_link *first, *last;
    uint32_t count;
} mq_fifo;

struct mq_link {
    mq_fifo *fifo; /* NULL: none */
    mq_link *previous, *next;
};

/* The item whose member is `link`. */
#define MQ_LINKED(link, type, member) ((type *)(void *)((uint8_t *)(link) - offsetof(type, member)))

/* Leave the FIFO, if it is in one. */
static inline void mq_fifo_leave(mq_link *link)
{
    mq_fifo *fifo = link->fifo;
    if (fifo == NULL)
        return;
    *(link->previous != NULL ? &link->previous->next : &fifo->first) = link->next;
    *(link->next != NULL ? &link->next->previous : &fifo->last) = link->previous;
    fifo->count--;
    *link = (mq_link){0};
}

/* Go to the end of `fifo`, from the FIFO that it is in. */
static inline void mq_fifo_add(mq_fifo *fifo, mq_link *link)
{
    mq_fifo_leave(link);
    *link = (mq_link){.fifo = fifo, .previous = fifo->last};
    *(fifo->last != NULL ? &fifo->last->next : &fifo->first) = link;
    fifo->last = link;
    fifo->count++;
}

/* Take the first out of the FIFO.  NULL: it is empty. */
static inline mq_link *mq_fifo_take(mq_fifo *fifo)
{
    mq_link *first = fifo->first;
    if (first != NULL)
        mq_fifo_leave(first);
    return first;
}

#endif
