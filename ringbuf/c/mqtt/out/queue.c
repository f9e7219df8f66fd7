/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue of a session: positions of records to be delivered, in a chain of chunks.
 *
 * Offline clients have long queues, by the thousand, so a long queue must be small and grow without copying.
 * Fan-out pushes to short queues, so a usual push is two stores without access to the chain (mq_push in
 * queue.h).  Format:
 *
 *   chunk   512, 1024, 2048 and from then on 4096 bytes with the allocator's: 32, 66, 134, 271 entries
 *   entry   15 bytes, packed: where (8), options (4), topic (3; MQ_TOPICS_MAX).  An entry is written as two
 *           words, of which the second extends into the first byte after the entry.  The next entry
 *           overwrites that byte; after the last entry a chunk has a spare byte
 *
 * A million entries take 15.1 bytes each, with all overhead (queues_bytes).  A queue that becomes empty keeps
 * one chunk of the smallest size.
 *
 * Each chunk that is not pushed to any more records the rings whose records it may still need (`rings`,
 * one bit each, modulo 32).  spill.c updates it: records that are copied out are not checked again.
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>
#include <string.h>

#define SPARE_CHUNKS 64u /* chunks of the largest size kept for growing queues */

_Static_assert(MQ_TOPICS_MAX <= 1u << 24, "an entry has three bytes for its topic");

static mq_chunk *chunk_take(mq_engine *engine, mq_session *session, uint32_t bytes)
{
    mq_chunk *chunk = engine->spare_chunks;
    if (bytes == MQ_CHUNK_MAX_BYTES && chunk != NULL) {
        engine->spare_chunks = chunk->next;
        engine->spare_chunk_count--;
    } else {
        chunk = malloc(bytes - MQ_ALLOCATOR_BYTES);
    }
    if (chunk == NULL)
        return NULL;
    *chunk = (mq_chunk){.capacity = MQ_CHUNK_CAPACITY(bytes),
                        .bytes = (uint16_t)(bytes / MQ_CHUNK_MIN_BYTES)};
    chunk->rings = UINT32_MAX;
    engine->counters.queues_bytes += bytes;
    session->queue_bytes += bytes;
    mq_owner_use(session->owner, MQ_OWNED_QUEUE_BYTES, bytes);
    return chunk;
}

static uint32_t chunk_bytes(const mq_chunk *chunk)
{
    return chunk->bytes * MQ_CHUNK_MIN_BYTES;
}

static void chunk_give(mq_engine *engine, mq_session *session, mq_chunk *chunk)
{
    engine->counters.queues_bytes -= chunk_bytes(chunk);
    session->queue_bytes -= chunk_bytes(chunk);
    mq_owner_use(session->owner, MQ_OWNED_QUEUE_BYTES, -(int64_t)chunk_bytes(chunk));
    if (chunk_bytes(chunk) == MQ_CHUNK_MAX_BYTES && engine->spare_chunk_count < SPARE_CHUNKS) {
        chunk->next = engine->spare_chunks;
        engine->spare_chunks = chunk;
        engine->spare_chunk_count++;
    } else {
        free(chunk);
    }
}

void mq_spare_chunks_free(mq_engine *engine)
{
    while (engine->spare_chunks != NULL) {
        mq_chunk *chunk = engine->spare_chunks;
        engine->spare_chunks = chunk->next;
        free(chunk);
    }
    engine->spare_chunk_count = 0;
}

/* Limit of the queue.  A restart restores queues without limits, because the limits applied before. */
static uint32_t queue_max(const mq_engine *engine, const mq_session *session)
{
    return engine->journal.replaying ? UINT32_MAX : session->queue_max;
}

/* Compute the number of entries that may be pushed before the next check of the limits. */
static void left_refresh(const mq_engine *engine, mq_session *session)
{
    uint32_t capacity = session->back == NULL
                            ? 0
                            : (uint32_t)(mq_chunk_end(session->back) - session->queue_in) / MQ_ENTRY_BYTES;
    uint32_t entries_max = queue_max(engine, session),
             allowed = session->queue_count < entries_max ? entries_max - session->queue_count : 0;
    session->queue_left = capacity < allowed ? capacity : allowed;
}

/* ---- removal of entries ---- */

/* Free the first chunk, which has been read to its end and is not the last. */
static void front_pass(mq_engine *engine, mq_session *session)
{
    mq_chunk *chunk = session->front;
    session->front = chunk->next;
    session->queue_out = session->front->entries;
    if (session->hot == chunk)
        session->hot = session->front;
    chunk_give(engine, session, chunk);
}

/* Restart an empty queue at the begin of one chunk of the smallest size. */
static void queue_emptied(mq_engine *engine, mq_session *session)
{
    if (chunk_bytes(session->back) > MQ_CHUNK_MIN_BYTES) {
        mq_chunk *smallest = chunk_take(engine, session, MQ_CHUNK_MIN_BYTES);
        if (smallest != NULL) {
            chunk_give(engine, session, session->back);
            session->back = smallest;
        }
    }
    session->front = session->hot = session->back;
    session->back->rings = UINT32_MAX;
    session->disordered &= session->in_flight > 0;
    session->queue_out = session->queue_in = session->back->entries;
    left_refresh(engine, session);
}

mq_entry mq_queue_pop(mq_engine *engine, mq_session *session)
{
    mq_entry entry = mq_queue_front(session);
    session->queue_out += MQ_ENTRY_BYTES;
    session->queue_count--;
    if (session->front != session->back && session->queue_out == mq_chunk_end(session->front))
        front_pass(engine, session);
    if (session->queue_count == 0)
        queue_emptied(engine, session);
    return entry;
}

static void drop_oldest(mq_engine *engine, mq_session *session, uint32_t cause)
{
    mq_entry oldest = mq_queue_pop(engine, session);
    mq_journal_popped(engine, session, &oldest);
    mq_entry_drop(engine, session, &oldest, cause);
}

/* ---- room for entries ---- */

static uint32_t next_bytes(const mq_session *session)
{
    uint32_t bytes = session->back == NULL ? MQ_CHUNK_MIN_BYTES : 2 * chunk_bytes(session->back);
    return bytes < MQ_CHUNK_MAX_BYTES ? bytes : MQ_CHUNK_MAX_BYTES;
}

static bool chunk_append(mq_engine *engine, mq_session *session)
{
    uint32_t bytes = next_bytes(session);
    if (!engine->journal.replaying && !mq_owner_may(engine, session->owner, MQ_OWNED_QUEUE_BYTES, bytes))
        return false;
    mq_chunk *chunk = chunk_take(engine, session, bytes);
    if (chunk == NULL)
        return false;
    if (session->back == NULL) {
        session->front = session->hot = chunk;
        session->queue_out = chunk->entries;
    } else {
        session->back->next = chunk;
    }
    session->back = chunk;
    session->queue_in = chunk->entries;
    return true;
}

/* Drop the oldest entries, without memory for a chunk, until their memory can be reused. */
static void room_from_oldest(mq_engine *engine, mq_session *session)
{
    while (session->front != session->back) {
        const mq_chunk *front = session->front;
        while (session->front == front)
            drop_oldest(engine, session, MQ_DROP_MEMORY);
        if (chunk_append(engine, session))
            return;
    }
    if (session->queue_out == session->back->entries)
        drop_oldest(engine, session, MQ_DROP_MEMORY);
    uint32_t bytes = session->queue_count * MQ_ENTRY_BYTES;
    memmove(session->back->entries, session->queue_out, bytes);
    session->queue_out = session->back->entries;
    session->queue_in = session->queue_out + bytes;
}

bool mq_queue_reserve(mq_engine *engine, mq_session *session)
{
    uint32_t cause = MQ_DROP_QUEUE;
    uint32_t entries_max = queue_max(engine, session);
    if (session->queue_count >= entries_max && session->queue_count > 0 && !session->drop_newest)
        drop_oldest(engine, session, cause);
    left_refresh(engine, session);
    if (session->queue_left == 0 && session->queue_count < entries_max) {
        cause = MQ_DROP_MEMORY;
        if (!chunk_append(engine, session) && session->queue_count > 0 && !session->drop_newest)
            room_from_oldest(engine, session);
        left_refresh(engine, session);
    }
    if (session->queue_left > 0)
        return true;
    engine->counters.dropped[cause]++;
    session->dropped[cause]++;
    return false;
}

/* ---- operations on the whole queue ---- */

bool mq_queue_next(const mq_session *session, mq_walk *walk)
{
    if (walk->chunk == NULL) {
        walk->chunk = session->front;
        walk->at = session->queue_out;
    } else {
        walk->at += MQ_ENTRY_BYTES;
    }
    if (session->queue_count == 0 || walk->at == session->queue_in)
        return false;
    if (walk->chunk != session->back && walk->at == mq_chunk_end(walk->chunk)) {
        walk->chunk = walk->chunk->next;
        walk->at = walk->chunk->entries;
    }
    return true;
}

/* Cut the queue after `last`, the newest of `count` entries that stay. */
static void queue_end_at(mq_engine *engine, mq_session *session, const mq_walk *last, uint32_t count)
{
    mq_chunk *rest = last->chunk->next;
    while (rest != NULL) {
        mq_chunk *next = rest->next;
        chunk_give(engine, session, rest);
        rest = next;
    }
    last->chunk->next = NULL;
    session->back = last->chunk;
    session->queue_in = last->at + MQ_ENTRY_BYTES;
    session->queue_count = count;
    session->hot = session->front;
    for (mq_chunk *chunk = session->front; chunk != NULL; chunk = chunk->next)
        chunk->rings = UINT32_MAX; /* entries have moved between chunks */
    left_refresh(engine, session);
}

void mq_queue_sift(mq_engine *engine, mq_session *session, bool (*take)(mq_engine *, const mq_entry *))
{
    mq_walk from = {0}, to = {0}, last = {0};
    uint32_t kept = 0;
    while (mq_queue_next(session, &from)) {
        mq_entry entry = mq_entry_at(from.at);
        if (take(engine, &entry))
            continue;
        mq_queue_next(session, &to);
        memmove(to.at, from.at, MQ_ENTRY_BYTES);
        last = to;
        kept++;
    }
    if (kept == session->queue_count)
        return;
    if (kept > 0) {
        queue_end_at(engine, session, &last, kept);
        return;
    }
    while (session->front != session->back)
        front_pass(engine, session);
    session->queue_count = 0;
    queue_emptied(engine, session);
}

void mq_queue_clear(mq_engine *engine, mq_session *session)
{
    mq_walk walk = {0};
    while (mq_queue_next(session, &walk)) {
        mq_entry entry = mq_entry_at(walk.at);
        mq_entry_done(engine, &entry);
    }
    while (session->front != NULL) {
        mq_chunk *chunk = session->front;
        session->front = chunk->next;
        chunk_give(engine, session, chunk);
    }
    session->back = session->hot = NULL;
    session->queue_in = session->queue_out = NULL;
    session->queue_count = session->queue_left = 0;
}
