/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading the journal at a restart (journal.h): the recorded events are repeated on new sessions.
 *
 * Sessions and rings have new numbers.  During the replay, queue entries have no topic and no ids, and
 * may point to records that are lost.  When all entries were read, mq_journal_replay_resolve() gives each
 * entry its current state.  Records stored just before the end, without an entry, are routed as new ones
 * (mq_journal_replay_route).
 *
 * Bytes are verified beyond their checksums: lengths and numbers are checked, and an entry that contradicts
 * earlier entries is skipped.
 */
#include "mqtt/out/frame.h"

#include <stdlib.h>

#define NUMBER_MASK 0xffffffu

struct mq_journal_replay {
    uint64_t *sessions; /* by their old number: handle; 0: none */
    uint32_t sessions_capacity;
    bool topics_refused;              /* Python has no room for topics: no further requests */
    uint64_t resolving;               /* handle of the session being resolved */
    mq_walk walk;                     /* current place in its queue */
    uint64_t lost;                    /* entries whose record no ring, log or spill file has */
    uint16_t rings[MQ_RINGS_MAX];     /* by their old number; 0: removed */
    uint64_t ends[MQ_RINGS_MAX];      /* by their old number: end of the stored records */
    uint64_t routed[MQ_RINGS_MAX];    /* by their old number: positions below have been routed */
    uint64_t stored[MQ_RINGS_MAX];    /* by their current number: end of the stored records */
};

mq_journal_replay *mq_journal_replay_new(mq_engine *engine)
{
    engine->journal.replaying = true;
    return calloc(1, sizeof(mq_journal_replay));
}

void mq_journal_replay_over(mq_engine *engine)
{
    engine->journal.replaying = false;
}

void mq_journal_replay_free(mq_journal_replay *replay)
{
    if (replay != NULL)
        free(replay->sessions);
    free(replay);
}

bool mq_journal_replay_session(mq_journal_replay *replay, uint32_t number, uint64_t handle)
{
    if (number >= replay->sessions_capacity) {
        uint32_t capacity = replay->sessions_capacity ? replay->sessions_capacity : 1024;
        while (capacity <= number)
            capacity *= 2;
        uint64_t *sessions = realloc(replay->sessions, capacity * sizeof *sessions);
        if (sessions == NULL)
            return false;
        memset(sessions + replay->sessions_capacity, 0,
               (capacity - replay->sessions_capacity) * sizeof *sessions);
        replay->sessions = sessions;
        replay->sessions_capacity = capacity;
    }
    replay->sessions[number] = handle;
    return true;
}

/* Set a ring.  Earlier data of this number was for another ring or an earlier epoch. */
void mq_journal_replay_ring(mq_journal_replay *replay, uint32_t number, const mq_replayed_ring *ring)
{
    replay->rings[number] = (uint16_t)ring->ring;
    replay->ends[number] = ring->end;
    replay->routed[number] = ring->routed;
    replay->stored[ring->ring] = ring->end;
}

void mq_journal_replay_refuse(mq_journal_replay *replay)
{
    replay->topics_refused = true;
}

uint64_t mq_journal_replay_lost(const mq_journal_replay *replay)
{
    return replay->lost;
}

uint64_t mq_journal_replay_mark(const mq_journal_replay *replay, uint32_t number)
{
    return replay->routed[number];
}

static mq_session *session_of(const mq_engine *engine, const mq_journal_replay *replay, uint32_t number)
{
    number &= NUMBER_MASK;
    return number < replay->sessions_capacity ? mq_slab_get(&engine->sessions, replay->sessions[number])
                                              : NULL;
}

static uint32_t word_at(const uint8_t *at, uint32_t index)
{
    uint32_t word;
    memcpy(&word, at + 4 * index, sizeof word);
    return word;
}

static uint64_t long_at(const uint8_t *at, uint32_t index)
{
    uint64_t value;
    memcpy(&value, at + 4 * index, sizeof value);
    return value;
}

/* `where` of an entry with the current number of its ring. */
static uint64_t where_now(const mq_journal_replay *replay, uint64_t where)
{
    if (where == MQ_NOWHERE)
        return where;
    uint32_t ring = replay->rings[mq_where_ring(where)];
    return ring == 0 ? MQ_NOWHERE : mq_where(ring, mq_where_position(where));
}

/* ---- one entry each ---- */

/* Options of an entry that hold after a restart.  In a shared record other bits are in the place of
 * OWN_ONLY. */
static uint32_t lasting(uint32_t options)
{
    uint32_t own = options & MQ_OPTION_SHARED ? 0 : options & MQ_OPTION_OWN_ONLY;
    return (options & (MQ_OPTION_QOS | MQ_OPTION_RETAIN)) | own;
}

static void queue(mq_engine *engine, mq_session *session, uint64_t where, uint32_t options)
{
    if (!(options & MQ_OPTION_QOS) || (options & MQ_OPTION_QOS) == 3)
        return;
    mq_push(engine, session,
            (mq_entry){.where = where, .topic = MQ_NO_TOPIC, .options = lasting(options)});
}

static void on_routed(mq_engine *engine, mq_journal_replay *replay, const uint8_t *at)
{
    uint64_t old = long_at(at, 1), where = where_now(replay, old);
    uint32_t count = word_at(at, 0) & NUMBER_MASK, ring = mq_where_ring(old);
    if (old != MQ_NOWHERE && replay->routed[ring] <= mq_where_position(old))
        replay->routed[ring] = mq_where_position(old) + 1;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t word = word_at(at, 3 + i);
        mq_session *session = session_of(engine, replay, word);
        if (session != NULL)
            queue(engine, session, where, word >> 24);
    }
}

/* Remove the first entry of a queue.  Entries before the one with `word` were dropped, and are removed,
 * too. */
static bool take_first(mq_engine *engine, mq_session *session, uint32_t word, mq_entry *out)
{
    bool is_queued = false;
    mq_walk walk = {0};
    uint32_t before = 0;
    while (word != MQ_JOURNAL_NO_WORD && !is_queued && mq_queue_next(session, &walk)) {
        is_queued = (uint32_t)mq_entry_at(walk.at).where == word;
        before += !is_queued;
    }
    if (!is_queued && (word != MQ_JOURNAL_NO_WORD || session->queue_count == 0))
        return false;
    for (uint32_t i = 0; is_queued && i < before; i++)
        mq_queue_pop(engine, session);
    *out = mq_queue_pop(engine, session);
    out->topic = MQ_NO_TOPIC; /* a queue has three bytes for the topic */
    return true;
}

/* Add `entry` to the window with the next identifier. */
static void send(mq_engine *engine, mq_session *session, mq_entry entry)
{
    uint16_t identifier;
    mq_entry *sent = mq_sent_add(engine, session, &identifier);
    if (sent == NULL)
        return;
    *sent = entry;
    if (entry.where == MQ_NOWHERE && !(entry.options & MQ_OPTION_RELEASED))
        mq_sent_done(engine, session, sent);
}

/* A queue has the current ring number, the journal has the old one: the lower 32 bits of `where` are
 * equal. */
static void on_sent(mq_engine *engine, mq_session *session, uint32_t word, bool with_identifier)
{
    mq_entry entry = {.where = MQ_NOWHERE};
    bool is_queued = take_first(engine, session, word, &entry);
    if (with_identifier)
        send(engine, session, is_queued ? entry : (mq_entry){.where = MQ_NOWHERE});
}

static void on_sent_else(mq_engine *engine, const mq_journal_replay *replay, mq_session *session,
                         const uint8_t *at)
{
    uint32_t options = word_at(at, 3);
    bool groups = options & MQ_OPTION_SHARED && (options & MQ_OPTION_QOS) == 1;
    mq_entry entry = {.where = groups ? MQ_NOWHERE : where_now(replay, long_at(at, 1)),
                      .topic = MQ_NO_TOPIC,
                      .options = lasting(options)};
    session->disordered = true;
    send(engine, session, entry);
}

static void on_released(mq_session *session, uint32_t identifier)
{
    mq_entry *entry = mq_sent_find(session, (uint16_t)identifier);
    if (entry != NULL)
        *entry = (mq_entry){.where = MQ_NOWHERE, .options = MQ_OPTION_RELEASED | 2};
}

/* True if the record was stored: the writer had passed its intended position. */
static bool is_stored(const mq_journal_replay *replay, uint64_t where)
{
    return where == MQ_NOWHERE || mq_where_position(where) < replay->ends[mq_where_ring(where)];
}

static void on_received(const mq_journal_replay *replay, mq_session *session, const uint8_t *at)
{
    uint32_t identifier = word_at(at, 3);
    if (identifier != 0 && identifier <= 65535 && is_stored(replay, long_at(at, 1)))
        mq_received_mark(session, (uint16_t)identifier);
}

/* Restore a receipt.  Without one, as for a record of an earlier epoch, a repeated message waits for all
 * records of the ring.  A ring that has ended without a log, such as that of delayed messages after a power
 * cut, has lost its record: the identifier is free, and the repetition is stored. */
static void on_receipt(mq_engine *engine, const mq_journal_replay *replay, mq_session *session,
                       const uint8_t *at)
{
    uint32_t ring = replay->rings[long_at(at, 1) >> MQ_RING_SHIFT], identifier = word_at(at, 3);
    uint64_t offset = long_at(at, 1) & (((uint64_t)1 << MQ_RING_SHIFT) - 1);
    if (identifier > 65535 || !mq_received_has(session, (uint16_t)identifier) || ring == 0)
        return;
    if (engine->rings[ring]->kind == MQ_RING_ENDED && engine->rings[ring]->logged_to == 0)
        mq_received_free(session, (uint16_t)identifier);
    if (engine->rings[ring]->kind != MQ_RING_OWN)
        return;
    mq_receipt_drop(session, (uint16_t)identifier);
    mq_receipt_add(
        engine, session,
        (mq_receipt){.offset = offset, .ring = (uint16_t)ring, .identifier = (uint16_t)identifier});
}

/* Search from the oldest entry: a finished one is usually near the front. */
static void on_gone(mq_engine *engine, mq_session *group, uint64_t where)
{
    mq_walk walk = {0};
    while (mq_queue_next(group, &walk)) {
        mq_entry entry = mq_entry_at(walk.at);
        if (entry.where != where || entry.options & MQ_OPTION_RELEASED)
            continue;
        mq_entry_take_back(walk.at);
        break;
    }
    while (group->queue_count > 0 && mq_queue_front(group).options & MQ_OPTION_RELEASED)
        mq_queue_pop(engine, group);
}

static void on_window(mq_engine *engine, const mq_journal_replay *replay, mq_session *session,
                      const uint8_t *at)
{
    uint32_t sent = word_at(at, 5), received = word_at(at, 6);
    const uint8_t *identifiers = at + 28 + 12 * sent;
    session->sent_first = session->sent_next = session->resend = long_at(at, 1);
    for (uint32_t i = 0; i < sent; i++) {
        uint32_t options = word_at(at, 9 + 3 * i);
        send(engine, session,
             (mq_entry){.where = where_now(replay, long_at(at, 7 + 3 * i)),
                        .topic = MQ_NO_TOPIC,
                        .options = lasting(options) | (options & MQ_OPTION_RELEASED)});
    }
    session->disordered |= sent > 0;
    for (uint32_t i = 0; i < received; i++)
        if (word_at(identifiers, i) <= 65535 && word_at(identifiers, i) != 0)
            mq_received_mark(session, (uint16_t)word_at(identifiers, i));
}

static void on_mark(mq_journal_replay *replay, uint32_t ring, uint64_t position)
{
    if (ring < MQ_RINGS_MAX && replay->routed[ring] < position)
        replay->routed[ring] = position;
}

static void on_queued(mq_engine *engine, const mq_journal_replay *replay, mq_session *session,
                      const uint8_t *at)
{
    for (uint32_t i = 0; i < word_at(at, 1); i++)
        queue(engine, session, where_now(replay, long_at(at, 2 + 3 * i)), word_at(at, 4 + 3 * i));
    session->disordered |= session->group != NULL; /* a snapshot has the records by member */
}

static void on_identifier(mq_engine *engine, mq_session *session, uint32_t kind, uint32_t identifier)
{
    mq_entry *entry;
    switch (kind) {
    case MQ_J_ACKED:
        if ((entry = mq_sent_find(session, (uint16_t)identifier)) != NULL)
            mq_sent_done(engine, session, entry);
        break;
    case MQ_J_RELEASED:
        on_released(session, identifier);
        break;
    default:
        mq_received_free(session, (uint16_t)identifier);
    }
}

static void replay_entry(mq_engine *engine, mq_journal_replay *replay, const uint8_t *at)
{
    uint32_t kind = word_at(at, 0) >> 24, number = word_at(at, 0) & NUMBER_MASK;
    if (kind == MQ_J_ROUTED) {
        on_routed(engine, replay, at);
        return;
    }
    if (kind == MQ_J_MARK) {
        on_mark(replay, number, long_at(at, 1));
        return;
    }
    mq_session *session = session_of(engine, replay, number);
    if (session == NULL)
        return;
    if (kind == MQ_J_SENT || kind == MQ_J_POPPED)
        on_sent(engine, session, word_at(at, 1), kind == MQ_J_SENT);
    else if (kind == MQ_J_SENT_ELSE)
        on_sent_else(engine, replay, session, at);
    else if (kind == MQ_J_RECEIVED)
        on_received(replay, session, at);
    else if (kind == MQ_J_RECEIPT)
        on_receipt(engine, replay, session, at);
    else if (kind == MQ_J_GONE)
        on_gone(engine, session, where_now(replay, long_at(at, 1)));
    else if (kind == MQ_J_WINDOW)
        on_window(engine, replay, session, at);
    else if (kind == MQ_J_QUEUED)
        on_queued(engine, replay, session, at);
    else
        on_identifier(engine, session, kind, word_at(at, 1));
}

bool mq_journal_replay_entries(mq_engine *engine, mq_journal_replay *replay, const uint8_t *bytes,
                               uint64_t length)
{
    uint64_t at = 0;
    while (at < length) {
        uint32_t entry = mq_journal_entry_bytes(bytes + at, length - at);
        if (entry == 0)
            return false;
        replay_entry(engine, replay, bytes + at);
        at += entry;
    }
    return true;
}

/* ---- resolving ---- */

/* Topic index of a record's name, or MQ_NO_TOPIC.  False: Python must add the topic first. */
static bool topic_named(const mq_engine *engine, const mq_journal_replay *replay, const uint8_t *name,
                        uint32_t length, mq_unknown *out, uint32_t *index)
{
    const mq_topic *topic = mq_topic_find(engine, name, length);
    *index = topic == NULL ? MQ_NO_TOPIC : topic->item.index;
    if (topic != NULL || replay->topics_refused)
        return true;
    *out = (mq_unknown){name, length};
    return false;
}

/* Subscription ids of the current route to the session of `entry`, with the identifiers of its
 * subscriptions.  A session may have a second route, for its own messages. */
static uint32_t ids_of(mq_engine *engine, const mq_entry *entry, const mq_session *session)
{
    const mq_topic *known = mq_slab_at(&engine->topics, entry->topic);
    uint32_t ids = 0;
    for (uint32_t i = 0; session->group == NULL && i < known->route_count; i++) {
        const mq_route *route = &known->routes[i];
        if (route->session != session || route->generation != session->item.generation)
            continue;
        ids = route->options >> MQ_OPTION_IDS_SHIFT;
        if (((route->options ^ entry->options) & MQ_OPTION_OWN_ONLY) == 0)
            break;
    }
    if (ids)
        mq_subscription_ids_at(engine, ids)->references++;
    return ids << MQ_OPTION_IDS_SHIFT;
}

/* Resolve a record that its ring has overwritten: it is in the log, in the spill file, or lost. */
static bool resolve_overwritten(mq_engine *engine, mq_journal_replay *replay, const mq_ring *ring,
                                mq_entry *entry, mq_unknown *out)
{
    uint64_t position = mq_where_position(entry->where);
    mq_blob *blob = mq_spill_find(engine, ring, position);
    if (blob == NULL) {
        bool is_logged = position < ring->logged_to && position < replay->stored[mq_where_ring(entry->where)];
        if (is_logged && ring->kind != MQ_RING_OF_PRODUCER)
            return true;
        entry->where = MQ_NOWHERE;
        replay->lost++;
        return true;
    }
    const uint8_t *name = (const uint8_t *)&blob->record + RB_RECORD_HEADER_BYTES;
    if (!topic_named(engine, replay, name, blob->record.key_length, out, &entry->topic))
        return false;
    mq_spill_take(engine, blob, entry->where);
    entry->where = (uint64_t)(uintptr_t)blob;
    return true;
}

/* The record at `position` of an own ring if the ring still has a plausible one, or NULL. */
static const rb_record *own_record(const rb_writer *writer, uint64_t position)
{
    rb_record header;
    rb_parts parts;
    uint64_t bad;
    if (position >= writer->tail)
        return NULL;
    uint64_t at = position & writer->mask, left = writer->tail - position, end = writer->capacity - at;
    return rb_record_at(writer->data + at, left < end ? left : end, &header, &parts, &bad) == 0
               ? NULL
               : rb_writer_record(writer, position);
}

/* Resolve a record of an own ring.  False: Python must add the topic first; no change was made. */
static bool resolve_own_record(mq_engine *engine, mq_journal_replay *replay, const mq_ring *ring,
                               mq_entry *entry, mq_unknown *out)
{
    uint64_t position = mq_where_position(entry->where);
    if (!rb_writer_keeps(ring->writer, position))
        return resolve_overwritten(engine, replay, ring, entry, out);
    const rb_record *record = own_record(ring->writer, position);
    if (record == NULL) {
        entry->where = MQ_NOWHERE;
        replay->lost++;
        return true;
    }
    return topic_named(engine, replay, (const uint8_t *)record + RB_RECORD_HEADER_BYTES, record->key_length,
                       out, &entry->topic);
}

/* Resolve a record of a producer ring.  The memory may change at any time, so the name is copied before
 * use. */
static bool resolve_producer_record(mq_engine *engine, mq_journal_replay *replay, const mq_ring *ring,
                                    mq_entry *entry, mq_unknown *out)
{
    mq_frame frame;
    uint8_t *name = engine->receive;
    uint64_t where = entry->where, position = mq_where_position(where);
    bool there = position < ring->reader->cursor || position < ring->resume_at;
    if (!there || mq_message_plan(engine, entry, true, &frame) != MQ_BUILT)
        return resolve_overwritten(engine, replay, ring, entry, out);
    memcpy(name, frame.topic, frame.topic_length);
    if (!rb_reader_holds(ring->reader, position))
        return resolve_overwritten(engine, replay, ring, entry, out);
    entry->where = MQ_NOWHERE;
    bool known = topic_named(engine, replay, name, frame.topic_length, out, &entry->topic);
    if (!known || entry->topic != MQ_NO_TOPIC) /* delivery checks the key again */
        entry->where = where;
    if (known && entry->topic != MQ_NO_TOPIC)
        ((mq_topic *)mq_slab_at(&engine->topics, entry->topic))->produced = where;
    return known;
}

static bool resolve_entry(mq_engine *engine, mq_journal_replay *replay, const mq_session *session,
                          mq_entry *entry, mq_unknown *out)
{
    uint32_t index = entry->where == MQ_NOWHERE ? 0 : mq_where_ring(entry->where);
    if (index == 0 || entry->topic != MQ_NO_TOPIC)
        return true;
    const mq_ring *ring = engine->rings[index];
    bool known = ring->kind == MQ_RING_OWN ? resolve_own_record(engine, replay, ring, entry, out)
                 : ring->kind == MQ_RING_OF_PRODUCER
                     ? resolve_producer_record(engine, replay, ring, entry, out)
                     : resolve_overwritten(engine, replay, ring, entry, out);
    if (known && entry->topic != MQ_NO_TOPIC)
        entry->options |= ids_of(engine, entry, session);
    return known;
}

/* Write a packed entry, which has three bytes for its topic. */
static void entry_put(uint8_t *at, const mq_entry *entry)
{
    memcpy(at, &entry->where, 8);
    memcpy(at + 8, &entry->options, 4);
    mq_entry_set_topic(at, entry->topic);
}

static bool resolve_window(mq_engine *engine, mq_journal_replay *replay, mq_session *session, mq_unknown *out)
{
    for (uint64_t n = session->sent_first; n < session->sent_next; n++) {
        if (n < session->sent_first) /* as in mq_session_forget_ring() */
            continue;
        mq_entry *entry = &session->sent[n & (session->sent_capacity - 1)];
        if (entry->where == MQ_NOWHERE)
            continue;
        if (!resolve_entry(engine, replay, session, entry, out))
            return false;
        if (entry->where == MQ_NOWHERE) {
            engine->counters.dropped[MQ_DROP_OVERRUN]++;
            session->dropped[MQ_DROP_OVERRUN]++;
            mq_sent_done(engine, session, entry);
        }
    }
    return true;
}

/* Resolve the queue.  Python's work in between does not move entries, so the iteration continues at its
 * place. */
static bool resolve_queue(mq_engine *engine, mq_journal_replay *replay, const mq_session *session,
                          mq_unknown *out)
{
    mq_walk at = replay->walk;
    while (mq_queue_next(session, &at)) {
        mq_entry entry = mq_entry_at(at.at);
        entry.topic = entry.topic == MQ_NO_TOPIC_PACKED ? MQ_NO_TOPIC : entry.topic;
        if (!resolve_entry(engine, replay, session, &entry, out))
            return false;
        entry_put(at.at, &entry);
        replay->walk = at;
    }
    return true;
}

bool mq_journal_replay_resolve(mq_engine *engine, mq_journal_replay *replay, mq_session *session,
                               mq_unknown *out)
{
    if (replay->resolving != mq_handle(&session->item)) {
        replay->resolving = mq_handle(&session->item);
        replay->walk = (mq_walk){0};
    }
    if (!resolve_window(engine, replay, session, out) || !resolve_queue(engine, replay, session, out))
        return false;
    session->queue_left = 0; /* the next push checks the limit, which may be lower now */
    while (session->queue_count > session->queue_max) {
        mq_entry oldest = mq_queue_pop(engine, session);
        mq_entry_drop(engine, session, &oldest, MQ_DROP_QUEUE);
    }
    if (session->needing_copies.fifo == NULL)
        mq_spill_add_session(engine, session);
    return true;
}

/* ---- records without an entry ---- */

static bool route_record(mq_engine *engine, const mq_journal_replay *replay, uint32_t ring, uint64_t position,
                         const rb_record *record, const uint8_t *name, mq_unknown *out)
{
    uint32_t index;
    if (!topic_named(engine, replay, name, record->key_length, out, &index))
        return false;
    mq_topic *topic = index == MQ_NO_TOPIC ? NULL : mq_slab_at(&engine->topics, index);
    mq_message message = {.flags = record->flags & (RB_FLAG_QOS | RB_FLAG_RETAIN)};
    if ((message.flags & RB_FLAG_QOS) == 3)
        message.flags ^= 1;
    if (topic != NULL && !topic->reserved)
        mq_route_record(engine, topic, mq_where(ring, position), &message);
    return true;
}

bool mq_journal_replay_route(mq_engine *engine, const mq_journal_replay *replay, uint32_t ring,
                             uint64_t position, const uint8_t *bytes, uint64_t length, uint64_t *from,
                             mq_unknown *out)
{
    uint64_t at = 0;
    while (length - at >= RB_RECORD_HEADER_BYTES) {
        rb_record header;
        rb_parts parts;
        uint64_t bad;
        memcpy(&header, bytes + at, sizeof header);
        if (header.length & RB_PADDING_BIT) {
            uint64_t filler = rb_filler_span(header.length);
            if (filler < RB_RECORD_ALIGN || filler > length - at)
                return true;
            at += filler;
            continue;
        }
        uint64_t span = rb_record_at(bytes + at, length - at, &header, &parts, &bad);
        if (span == 0)
            return true;
        if (position + at >= *from) {
            if (!route_record(engine, replay, ring, position + at, &header,
                              bytes + at + RB_RECORD_HEADER_BYTES, out))
                return false;
            *from = position + at + 1;
        }
        at += span;
    }
    return true;
}
