/* SPDX-License-Identifier: Apache-2.0
 *
 * Types: slabs of items that never move, and bytes.  Part of mqtt.h.
 */
#ifndef BRIM_MQTT_SLAB_H
#define BRIM_MQTT_SLAB_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mq_item {        /* head of every item in a slab */
    uint32_t index, generation; /* generation is odd while the item is in use */
    uint32_t next_free;
} mq_item;

typedef struct mq_slab_chunk mq_slab_chunk;

typedef struct mq_slab {
    mq_slab_chunk *chunks;
    uint32_t item_bytes, created, live, free; /* free: index + 1 of the first free item */
    uint32_t bare;                         /* chunks without memory */
} mq_slab;

typedef struct mq_bytes {
    uint8_t *at;
    uint32_t start, end, capacity;
} mq_bytes;

typedef struct mq_spares { /* free buffers of one size, chained by their first word */
    uint8_t *first;
    uint32_t count;
} mq_spares;

static inline uint64_t mq_handle(const mq_item *item)
{
    return (uint64_t)item->generation << 32 | item->index;
}

#endif
