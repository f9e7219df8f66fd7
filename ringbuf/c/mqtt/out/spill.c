/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of records that a ring is about to overwrite while sessions still need them.  Each record is copied
 * once and shared by all sessions that need it.  spill_max_bytes bounds the memory.  Beyond it records are
 * not copied, and are counted as overrun in their turn.
 *
 * Copies are in the spill file (spill_file.h), which outlives the broker as rings do.  While the file has no
 * room, no record that a kept session needs may be overwritten in an own ring; the publisher is refused
 * instead.  Copies for sessions that end with the broker, and copies from producer rings, are then on the
 * heap.  Without a file all copies are on the heap.
 *
 * Only records of QoS 1 and 2 are copied, queued or in flight, and only from rings without a log: records in
 * a log are read back from there (log_backfill.c).
 *
 *   own ring       before the writer overwrites needed records: only the limit causes losses
 *   producer ring  when the records read are half a ring old.  Its writer does not wait for the broker, so a
 *                  burst of half a ring between two sweeps still overruns
 *
 * Cost.  Sessions without queued records of QoS 1 or 2 cost nothing.  A session is in `copy_sessions` from
 * the push that makes it need a ring until a sweep finds that it needs none.  A sweep is due once for each
 * sixteenth of a ring (at most a mebibyte) that was written.  In each queue it begins at the chunk `hot`,
 * skips chunks without the ring, and ends at the first record of the ring that may still stay: positions of a
 * ring rise in a queue.  If they do not, because an entry was queued again, the session is `disordered`.
 */
#include "mqtt/in/packets.h"

#include <stdlib.h>

#define SHARE 16u
#define STEP_MAX_BYTES (1u << 20)
#define RETRY_MS 5u

typedef struct sweep {
    mq_engine *engine;
    mq_ring *ring;
    uint32_t index;
    uint64_t from, to; /* range of positions to be copied */
    mq_blob **copies;  /* by (position - from) / RB_RECORD_ALIGN; allocated for the first copy */
    bool refused;      /* no room for a copy that must outlive the broker */
} sweep;

typedef enum need {
    NEEDS_NOTHING,
    NEEDS_COPY,
    NEEDS_LATER, /* a record of this ring that is not overwritten yet */
    NEEDS_OTHER  /* a record of another ring that may need a copy */
} need;

void mq_spill_add_session(mq_engine *engine, mq_session *session)
{
    mq_fifo_add(&engine->copy_sessions, &session->needing_copies);
}

/* ---- copies ---- */

static mq_blob *blob_new(mq_engine *engine, uint32_t length)
{
    uint32_t bytes = (uint32_t)offsetof(mq_blob, record) + length;
    mq_blob *blob = malloc(bytes);
    if (blob == NULL)
        return NULL;
    *blob = (mq_blob){.bytes = bytes, .spilled = true};
    engine->counters.spilled_bytes += bytes;
    engine->counters.spilled_records++;
    return blob;
}

static void blob_free(mq_engine *engine, mq_blob *blob)
{
    if (mq_spill_has(&engine->spill, blob)) {
        mq_spill_release(engine, blob);
        return;
    }
    if (blob->spilled) {
        engine->counters.spilled_bytes -= blob->bytes;
        engine->counters.spilled_records--;
    } else if (!blob->reserved) { /* not retained by a topic any more */
        engine->counters.retained_bytes -= blob->bytes;
        engine->replaced_bytes -= blob->bytes;
    }
    free(blob);
}

/* Copies in a closed file stay unchanged. */
void mq_blob_done(mq_engine *engine, mq_blob *blob)
{
    if (mq_spill_has(&engine->spill, blob) && !engine->spill.open)
        return;
    if (--blob->references == 0)
        blob_free(engine, blob);
}

mq_blob *mq_blob_of(mq_engine *engine, const void *record, uint32_t length)
{
    mq_blob *blob = blob_new(engine, length);
    if (blob != NULL)
        memcpy(&blob->record, record, length);
    return blob;
}

static bool copy_allowed(const mq_engine *engine, uint32_t length)
{
    return engine->counters.spilled_bytes + offsetof(mq_blob, record) + length <=
           engine->limits.spill_max_bytes;
}

/* Allocate a copy: in the file if it has room, otherwise on the heap.  NULL: no memory, or no room in the
 * file for a copy that `outlives` the broker. */
static mq_blob *allocate_copy(sweep *sweep, uint64_t position, uint32_t length, bool outlives)
{
    mq_engine *engine = sweep->engine;
    if (!copy_allowed(engine, length)) {
        engine->counters.spill_over++;
        return NULL;
    }
    mq_blob *blob = mq_spill_reserve(engine, sweep->ring, position, length);
    bool needs_file = outlives && engine->spill.open && sweep->ring->ring_name_length > 0;
    sweep->refused |= blob == NULL && needs_file;
    return blob != NULL || needs_file ? blob : blob_new(engine, length);
}

static void copy_done(mq_engine *engine, mq_blob *blob)
{
    if (mq_spill_has(&engine->spill, blob))
        mq_spill_commit(engine, blob);
}

static void copy_abort(mq_engine *engine, mq_blob *blob)
{
    if (mq_spill_has(&engine->spill, blob))
        mq_spill_abort(engine, blob);
    else
        blob_free(engine, blob);
}

static mq_blob *copy_own(sweep *sweep, uint64_t position, bool outlives)
{
    const rb_record *record = rb_writer_record(sweep->ring->writer, position);
    mq_blob *blob = allocate_copy(sweep, position, record->length, outlives);
    if (blob == NULL)
        return NULL;
    memcpy(&blob->record, record, record->length);
    copy_done(sweep->engine, blob);
    return blob;
}

/* True if the properties have the form that delivery expects of own records. */
static bool properties_hold(mq_engine *engine, rb_record *record, const uint8_t *at, uint32_t length)
{
    mq_properties checked;
    if (mq_properties_of_publish(engine, at, at + length, &checked) != 0 || checked.end != at + length ||
        checked.subscriptions || (checked.stored != NULL && checked.stored != at))
        return false;
    record->flags = (uint16_t)((record->flags & ~RB_FLAG_EXPIRY) | (checked.flags & RB_FLAG_EXPIRY));
    return true;
}

/* True if `blob`, now only in this process's memory, is the record that was routed to `topic`. */
static bool copy_is_whole(mq_engine *engine, mq_blob *blob, const mq_topic *topic)
{
    const uint8_t *bytes = (const uint8_t *)&blob->record;
    rb_parts parts;
    if (rb_record_parts(&blob->record, bytes, blob->record.length, &parts) != RB_OK ||
        !(topic->item.generation & 1) || topic->length != blob->record.key_length ||
        memcmp(topic->name, bytes + RB_RECORD_HEADER_BYTES, topic->length) != 0)
        return false;
    return !(blob->record.flags & RB_FLAG_PROPERTIES) ||
           properties_hold(engine, &blob->record, bytes + parts.properties_position, parts.properties_length);
}

/* Copy a record of another process, which may change it at any time.  The copy is valid if it is intact and
 * the record was still valid after copying. */
static mq_blob *copy_from_producer(sweep *sweep, uint64_t position, uint32_t topic)
{
    const rb_reader *reader = sweep->ring->reader;
    const uint8_t *bytes = reader->data + (position & reader->mask);
    rb_record header;
    memcpy(&header, bytes, sizeof header);
    if (header.length < RB_RECORD_HEADER_BYTES ||
        header.length > reader->capacity - (position & reader->mask))
        return NULL;
    mq_blob *blob = allocate_copy(sweep, position, header.length, false);
    if (blob == NULL)
        return NULL;
    memcpy(&blob->record, bytes, header.length);
    blob->record = header;
    blob->record.flags &= (uint16_t)~RB_FLAG_EXPIRY;
    if (!rb_reader_holds(reader, position) ||
        !copy_is_whole(sweep->engine, blob, mq_slab_at(&sweep->engine->topics, topic))) {
        copy_abort(sweep->engine, blob);
        return NULL;
    }
    copy_done(sweep->engine, blob);
    return blob;
}

/* True if an existing copy for another session is sufficient.  A copy on the heap ends with the broker. */
static bool suffices(const sweep *sweep, const mq_blob *blob, bool outlives)
{
    return blob != NULL &&
           (!outlives || !sweep->engine->spill.open || mq_spill_has(&sweep->engine->spill, blob));
}

/* Get the copy of the record of `entry`, new or shared with another session.  NULL: no copy. */
static mq_blob *copy_of(sweep *sweep, const mq_session *session, const mq_entry *entry)
{
    bool own = sweep->ring->kind == MQ_RING_OWN, outlives = own && session->kept;
    uint64_t position = mq_where_position(entry->where);
    mq_blob **copies = NULL;
    if (sweep->copies == NULL)
        sweep->copies = calloc((sweep->to - sweep->from) / RB_RECORD_ALIGN, sizeof *sweep->copies);
    if (sweep->copies != NULL && position >= sweep->from)
        copies = &sweep->copies[(position - sweep->from) / RB_RECORD_ALIGN];
    if (copies != NULL && suffices(sweep, *copies, outlives))
        return *copies;
    mq_blob *blob = own ? copy_own(sweep, position, outlives)
                        : copy_from_producer(sweep, position, entry->topic);
    sweep->engine->counters.spilled += blob != NULL;
    if (copies != NULL && blob != NULL)
        *copies = blob;
    return blob;
}

/* ---- sweep over the sessions ---- */

static need need_of(const sweep *sweep, const mq_entry *entry)
{
    uint32_t index = mq_where_ring(entry->where);
    if (entry->where == MQ_NOWHERE || index == 0 || !(entry->options & MQ_OPTION_QOS))
        return NEEDS_NOTHING;
    const mq_ring *ring = sweep->engine->rings[index];
    uint64_t position = mq_where_position(entry->where);
    if (ring->kind == MQ_RING_NONE || position < ring->logged_to)
        return NEEDS_NOTHING;
    if (index != sweep->index)
        return NEEDS_OTHER;
    if (position >= sweep->to)
        return NEEDS_LATER;
    bool kept = ring->kind == MQ_RING_OWN ? rb_writer_keeps(ring->writer, position)
                                          : rb_reader_holds(ring->reader, position);
    return kept ? NEEDS_COPY : NEEDS_NOTHING;
}

/* Copy the records of the window, in the order of sending.  True: a record of a ring is still needed.  With
 * `refused`, the sweep stopped early. */
static bool sweep_window(sweep *sweep, mq_session *session)
{
    bool needs = false;
    for (uint64_t n = session->sent_first; n < session->sent_next; n++) {
        mq_entry *entry = &session->sent[n & (session->sent_capacity - 1)];
        need need = need_of(sweep, entry);
        needs |= need == NEEDS_OTHER || need == NEEDS_LATER;
        if (need == NEEDS_LATER && !session->disordered)
            return true;
        mq_blob *blob = need == NEEDS_COPY ? copy_of(sweep, session, entry) : NULL;
        if (sweep->refused)
            return true;
        if (blob != NULL) {
            blob->origin = entry->where;
            entry->where = (uint64_t)(uintptr_t)blob;
            blob->references++;
        }
    }
    return needs;
}

/* Copy the records of one chunk; *rings gains the rings it still needs.  False: the sweep of this queue
 * ends. */
static bool sweep_chunk(sweep *sweep, const mq_session *session, mq_chunk *chunk, uint32_t *rings)
{
    uint8_t *at = chunk == session->front ? session->queue_out : chunk->entries;
    const uint8_t *end = chunk == session->back ? session->queue_in : mq_chunk_end(chunk);
    for (; at != end; at += MQ_ENTRY_BYTES) {
        mq_entry entry = mq_entry_at(at);
        need need = need_of(sweep, &entry);
        if (need == NEEDS_LATER && !session->disordered)
            return false;
        if (need == NEEDS_OTHER || need == NEEDS_LATER)
            *rings |= 1u << (mq_where_ring(entry.where) & 31);
        mq_blob *blob = need == NEEDS_COPY ? copy_of(sweep, session, &entry) : NULL;
        if (sweep->refused)
            return false;
        if (blob != NULL) {
            blob->origin = entry.where;
            mq_entry_move(at, (uint64_t)(uintptr_t)blob);
            blob->references++;
        }
    }
    return true;
}

/* Copy the records of one session.  True: it still needs a record of a ring. */
static bool sweep_session(sweep *sweep, mq_session *session)
{
    bool needs = sweep_window(sweep, session);
    for (mq_chunk *chunk = session->hot; chunk != NULL && !sweep->refused; chunk = chunk->next) {
        uint32_t rings = chunk->rings;
        if (rings & 1u << (sweep->index & 31)) {
            rings = 0;
            if (!sweep_chunk(sweep, session, chunk, &rings))
                return true;
            if (chunk != session->back)
                chunk->rings = rings;
        }
        needs |= rings != 0;
        if (chunk == session->hot && rings == 0 && chunk->next != NULL)
            session->hot = chunk->next;
    }
    return needs;
}

/* Copy the records of all sessions that may need copies.  False: no room for all of them. */
static bool sweep_all(mq_engine *engine, uint32_t index, uint64_t to, uint64_t capacity)
{
    mq_ring *ring = engine->rings[index];
    uint64_t from = to - ring->copied > capacity ? to - capacity : ring->copied;
    sweep sweep = {.engine = engine, .ring = ring, .index = index, .from = from, .to = to};
    mq_link *link = engine->copy_sessions.first, *next;
    for (; link != NULL && !sweep.refused; link = next) {
        next = link->next;
        if (!sweep_session(&sweep, MQ_LINKED(link, mq_session, needing_copies)))
            mq_fifo_leave(link);
    }
    free(sweep.copies);
    if (!sweep.refused)
        ring->copied = to;
    return !sweep.refused;
}

static uint64_t step_bytes(uint64_t capacity)
{
    return capacity / SHARE < STEP_MAX_BYTES ? capacity / SHARE : STEP_MAX_BYTES;
}

bool mq_spill_own(mq_engine *engine, uint32_t index, uint64_t overwrite_bytes)
{
    mq_ring *ring = engine->rings[index];
    const rb_writer *writer = ring->writer;
    uint64_t ahead = writer->tail + overwrite_bytes + step_bytes(writer->capacity);
    uint64_t to = ahead > writer->capacity ? ahead - writer->capacity : 0;
    /* exceeds a record: the append will be refused */
    if (overwrite_bytes > writer->capacity || to > writer->tail)
        return true;
    if (engine->now_ms < ring->refused_until_ms)
        return false;
    if (to > ring->copied && !sweep_all(engine, index, to, writer->capacity)) {
        ring->refused_until_ms = engine->now_ms + RETRY_MS;
        return false;
    }
    ring->copy_at = to + writer->capacity;
    return true;
}

void mq_spill_producer(mq_engine *engine, uint32_t index)
{
    mq_ring *ring = engine->rings[index];
    const rb_reader *reader = ring->reader;
    uint64_t to = reader->cursor > reader->capacity / 2 ? reader->cursor - reader->capacity / 2 : 0;
    if (to > ring->copied)
        sweep_all(engine, index, to, reader->capacity);
    ring->copy_at = reader->cursor + step_bytes(reader->capacity);
}
