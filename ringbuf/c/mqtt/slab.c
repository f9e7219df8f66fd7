/* SPDX-License-Identifier: Apache-2.0
 *
 * Slabs: items of one size that never move, allocated in chunks and found by index or handle.
 *
 * A chunk is a number of pages whose address space is never released, so a pointer to an item always points
 * to memory of its type.  The memory of a chunk without live items may be released (mq_slab_trim).  It then
 * reads as zeros, which means an unused item.  When the chunk is filled again, generations continue from its
 * `floor`, so that no handle or stored generation ever becomes valid again.
 *
 * Free items are chained; items of released chunks are not in the chain.
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>
#include <string.h>

#define SLAB_ITEMS 256u
#define PAGE_BYTES 4096u

struct mq_slab_chunk {
    uint8_t *at;
    uint32_t live, floor;
    bool bare; /* its memory is released */
};

static size_t chunk_bytes(const mq_slab *slab)
{
    return ((size_t)SLAB_ITEMS * slab->item_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static mq_item *item_at(const mq_slab *slab, uint32_t index)
{
    return (mq_item *)(void *)(slab->chunks[index / SLAB_ITEMS].at +
                               (size_t)(index % SLAB_ITEMS) * slab->item_bytes);
}

static void chain(mq_slab *slab, mq_item *item)
{
    item->next_free = slab->free;
    slab->free = item->index + 1;
}

/* Initialize the items of a chunk, whose memory is zeros. */
static void chunk_fill(mq_slab *slab, uint32_t chunk)
{
    for (uint32_t i = SLAB_ITEMS; i-- > 0;) {
        mq_item *item = item_at(slab, chunk * SLAB_ITEMS + i);
        item->index = chunk * SLAB_ITEMS + i;
        item->generation = slab->chunks[chunk].floor;
        chain(slab, item);
    }
    slab->chunks[chunk].bare = false;
}

static bool refill(mq_slab *slab)
{
    for (uint32_t chunk = 0; slab->bare > 0 && chunk < slab->created / SLAB_ITEMS; chunk++)
        if (slab->chunks[chunk].bare) {
            slab->bare--;
            chunk_fill(slab, chunk);
            return true;
        }
    return false;
}

static bool slab_grow(mq_slab *slab)
{
    uint32_t chunks = slab->created / SLAB_ITEMS;
    mq_slab_chunk *list = realloc(slab->chunks, (chunks + 1) * sizeof *list);
    if (list == NULL)
        return false;
    slab->chunks = list;
    list[chunks] = (mq_slab_chunk){.at = aligned_alloc(PAGE_BYTES, chunk_bytes(slab))};
    if (list[chunks].at == NULL)
        return false;
    memset(list[chunks].at, 0, chunk_bytes(slab));
    slab->created += SLAB_ITEMS;
    chunk_fill(slab, chunks);
    return true;
}

void *mq_slab_take(mq_slab *slab)
{
    if (slab->free == 0 && !refill(slab) && !slab_grow(slab))
        return NULL;
    mq_item *item = item_at(slab, slab->free - 1);
    slab->free = item->next_free;
    memset(item + 1, 0, slab->item_bytes - sizeof *item);
    item->generation++;
    slab->chunks[item->index / SLAB_ITEMS].live++;
    slab->live++;
    return item;
}

void mq_slab_give(mq_slab *slab, mq_item *item)
{
    item->generation++;
    slab->chunks[item->index / SLAB_ITEMS].live--;
    slab->live--;
    chain(slab, item);
}

static void chunk_bare(mq_slab *slab, uint32_t chunk)
{
    mq_slab_chunk *slab_chunk = &slab->chunks[chunk];
    for (uint32_t i = 0; i < SLAB_ITEMS; i++) {
        uint32_t generation = item_at(slab, chunk * SLAB_ITEMS + i)->generation;
        slab_chunk->floor = generation > slab_chunk->floor ? generation : slab_chunk->floor;
    }
    slab_chunk->bare = true;
    slab->bare++;
    rb_memory_clear(slab_chunk->at, chunk_bytes(slab));
}

void mq_slab_trim(mq_slab *slab)
{
    slab->free = 0;
    for (uint32_t chunk = slab->created / SLAB_ITEMS; chunk-- > 0;) {
        const mq_slab_chunk *slab_chunk = &slab->chunks[chunk];
        if (slab_chunk->live == 0 && !slab_chunk->bare)
            chunk_bare(slab, chunk);
        for (uint32_t i = SLAB_ITEMS; !slab_chunk->bare && slab_chunk->live < SLAB_ITEMS && i-- > 0;) {
            mq_item *item = item_at(slab, chunk * SLAB_ITEMS + i);
            if (!(item->generation & 1))
                chain(slab, item);
        }
    }
}

void *mq_slab_at(const mq_slab *slab, uint32_t index)
{
    return index < slab->created ? item_at(slab, index) : NULL;
}

void *mq_slab_get(const mq_slab *slab, uint64_t handle)
{
    mq_item *item = mq_slab_at(slab, (uint32_t)handle);
    uint32_t generation = (uint32_t)(handle >> 32);
    return item != NULL && item->generation == generation && generation & 1 ? item : NULL;
}

void mq_slab_free(mq_slab *slab)
{
    for (uint32_t i = 0; i < slab->created / SLAB_ITEMS; i++)
        free(slab->chunks[i].at);
    free(slab->chunks);
}
