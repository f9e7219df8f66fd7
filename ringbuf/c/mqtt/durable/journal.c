/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing the journal (journal.h): entries are collected in memory and appended to its ring in pieces.
 *
 * The ring has a fixed size.  A restart needs the entries after the last snapshot, so they must not be
 * overwritten before they are saved elsewhere: in the next snapshot, which is requested early
 * (mq_journal_needs), or in the ring's log if it has one.  Without room, no output is sent and no client is
 * read until there is room.
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>
#include <string.h>

#define ROOM_MIN 4096u
#define NUMBER_MASK 0xffffffu
#define LOG_PATIENCE_MS 5000u /* time without a sync after which a snapshot must make room */
#define ROUTED_BYTES 12u
#define ITEM_BYTES 12u /* where, options */
#define IDENTIFIER_BYTES 16u /* of RECEIVED and RECEIPT */

_Static_assert(MQ_J_RECEIPT < 256, "a kind has eight bits");

/* ---- collection of entries ---- */

static void tear(mq_journal *journal)
{
    journal->torn = journal->torn_since = true;
}

/* Reserve `bytes` for an entry.  NULL: no memory; a snapshot must then contain the change. */
static uint8_t *collect(mq_journal *journal, uint32_t bytes)
{
    if (journal->writer == NULL)
        return NULL;
    if (journal->capacity - journal->used < bytes) {
        uint64_t capacity = journal->capacity ? journal->capacity : ROOM_MIN;
        while (capacity - journal->used < bytes)
            capacity *= 2;
        uint8_t *at = capacity > UINT32_MAX / 2 ? NULL : realloc(journal->at, capacity);
        if (at == NULL) {
            tear(journal);
            return NULL;
        }
        journal->at = at;
        journal->capacity = (uint32_t)capacity;
    }
    uint8_t *to = journal->at + journal->used;
    journal->used += bytes;
    journal->open = 0;
    return to;
}

static uint8_t *put_word(uint8_t *to, uint32_t word)
{
    memcpy(to, &word, sizeof word);
    return to + sizeof word;
}

static uint8_t *put_long(uint8_t *to, uint64_t value)
{
    memcpy(to, &value, sizeof value);
    return to + sizeof value;
}

static uint32_t head(uint32_t kind, uint32_t number)
{
    return kind << 24 | (number & NUMBER_MASK);
}

/* `where` of the entry's record in its ring, current or former. */
static uint64_t origin_of(uint64_t where)
{
    if (where == MQ_NOWHERE || mq_where_ring(where) != 0)
        return where;
    uint64_t origin = mq_where_blob(where)->origin;
    return origin ? origin : MQ_NOWHERE;
}

static uint32_t origin_word(uint64_t where)
{
    uint64_t origin = origin_of(where);
    return origin == MQ_NOWHERE ? MQ_JOURNAL_NO_WORD : (uint32_t)origin;
}

void mq_journal_word(mq_engine *engine, uint32_t kind, const mq_session *session, uint32_t word)
{
    uint8_t *to = collect(&engine->journal, 8);
    if (to != NULL)
        put_word(put_word(to, head(kind, session->item.index)), word);
}

static void add_long(mq_engine *engine, uint32_t kind, uint32_t number, uint64_t value)
{
    uint8_t *to = collect(&engine->journal, 12);
    if (to != NULL)
        put_long(put_word(to, head(kind, number)), value);
}

/* Add one entry for all sessions that a record is queued for, if no other entry comes between. */
void mq_journal_routed(mq_engine *engine, const mq_session *session, const mq_entry *entry)
{
    mq_journal *journal = &engine->journal;
    uint64_t where = origin_of(entry->where);
    uint32_t open = journal->open, count = 0, first;
    if (open != 0 && journal->open_where == where) {
        memcpy(&first, journal->at + open - 1, sizeof first);
        count = first & NUMBER_MASK;
    }
    if (count == 0 || count == MQ_JOURNAL_COUNT_MAX) {
        uint8_t *to = collect(journal, ROUTED_BYTES);
        if (to == NULL)
            return;
        open = journal->used - ROUTED_BYTES + 1;
        count = 0;
        put_long(to + 4, where);
    }
    uint8_t *to = collect(journal, 4);
    if (to == NULL) {
        journal->used -= count == 0 ? ROUTED_BYTES : 0;
        return;
    }
    put_word(to, head(entry->options & 0xff, session->item.index));
    put_word(journal->at + open - 1, head(MQ_J_ROUTED, count + 1));
    journal->open = open;
    journal->open_where = where;
}

/* Add an entry for a client's session.  A group's record stays the group's until the member has finished
 * it. */
void mq_journal_popped(mq_engine *engine, const mq_session *session, const mq_entry *entry)
{
    if (entry->options & MQ_OPTION_SHARED)
        mq_journal_gone(engine, entry);
    else if (session->kept && entry->options & MQ_OPTION_QOS && session->group == NULL)
        mq_journal_word(engine, MQ_J_POPPED, session, origin_word(entry->where));
}

void mq_journal_gone(mq_engine *engine, const mq_entry *entry)
{
    const mq_session *queue = mq_slab_get(
        &engine->sessions, mq_subscription_ids_at(engine, entry->options >> MQ_OPTION_IDS_SHIFT)->group);
    if (queue != NULL && queue->kept)
        add_long(engine, MQ_J_GONE, queue->item.index, origin_of(entry->where));
}

/* Add an entry for a delivery from the queue or elsewhere: sent with an identifier (`sent`), sent without
 * one, or dropped. */
void mq_journal_sent(mq_engine *engine, const mq_session *session, const mq_entry *entry, bool sent,
                     bool queued)
{
    bool shared = entry->options & MQ_OPTION_SHARED;
    if (!sent) {
        if (queued)
            mq_journal_popped(engine, session, entry);
        return;
    }
    if (session->kept && queued && !shared) {
        mq_journal_word(engine, MQ_J_SENT, session, origin_word(entry->where));
    } else if (session->kept) {
        uint8_t *to = collect(&engine->journal, 16);
        if (to != NULL) {
            to = put_word(to, head(MQ_J_SENT_ELSE, session->item.index));
            put_word(put_long(to, origin_of(entry->where)), entry->options & 0xff);
        }
    }
    if (shared && (entry->options & MQ_OPTION_QOS) == 2)
        mq_journal_gone(engine, entry); /* the message stays with this session [MQTT-4.8.2-4] */
}

static uint8_t *put_identifier(uint8_t *to, uint32_t kind, const mq_session *session, uint64_t where,
                               uint16_t identifier)
{
    to = put_word(to, head(kind, session->item.index));
    return put_word(put_long(to, where), identifier);
}

static uint8_t *put_receipt(uint8_t *to, const mq_session *session, const mq_receipt *receipt)
{
    uint64_t where = (uint64_t)receipt->ring << MQ_RING_SHIFT | receipt->offset;
    return put_identifier(to, MQ_J_RECEIPT, session, where, receipt->identifier);
}

bool mq_journal_received(mq_engine *engine, const mq_session *session, uint64_t where, uint16_t identifier,
                         const mq_receipt *receipt)
{
    mq_journal *journal = &engine->journal;
    if (journal->writer == NULL)
        return true;
    if (!mq_journal_written(engine))
        return false;
    uint8_t *to = collect(journal, receipt == NULL ? IDENTIFIER_BYTES : 2 * IDENTIFIER_BYTES);
    if (to == NULL)
        return false;
    to = put_identifier(to, MQ_J_RECEIVED, session, where, identifier);
    if (receipt != NULL)
        put_receipt(to, session, receipt);
    if (mq_journal_flush(engine))
        return true;
    journal->used = 0; /* only these entries: they must not be written later */
    journal->full = journal->stalled = false;
    journal->waits_since = 0;
    return false;
}

void mq_journal_mark(mq_engine *engine, uint32_t index)
{
    mq_ring *ring = engine->rings[index];
    if (engine->journal.writer == NULL || ring == NULL ||
        (ring->kind != MQ_RING_OWN && ring->kind != MQ_RING_OF_PRODUCER))
        return;
    uint64_t position = ring->kind == MQ_RING_OWN ? mq_visible_position(ring) : ring->reader->cursor;
    if (position == ring->marked)
        return;
    ring->marked = position;
    add_long(engine, MQ_J_MARK, index, position);
}

void mq_journal_passed(mq_engine *engine, uint64_t where)
{
    add_long(engine, MQ_J_MARK, mq_where_ring(where), mq_where_position(where) + 1);
}

/* ---- writing ---- */

uint32_t mq_journal_entry_bytes(const uint8_t *at, uint64_t left)
{
    uint32_t words[7] = {0};
    if (left < 8)
        return 0;
    memcpy(words, at, left < sizeof words ? left : sizeof words);
    uint64_t bytes = 0, sent = 0;
    switch (words[0] >> 24) {
    case MQ_J_ROUTED:
        bytes = ROUTED_BYTES + 4ull * (words[0] & NUMBER_MASK);
        break;
    case MQ_J_SENT:
    case MQ_J_POPPED:
    case MQ_J_ACKED:
    case MQ_J_RELEASED:
    case MQ_J_FREED:
        bytes = 8;
        break;
    case MQ_J_MARK:
    case MQ_J_GONE:
        bytes = 12;
        break;
    case MQ_J_SENT_ELSE:
        bytes = 16;
        break;
    case MQ_J_RECEIVED:
    case MQ_J_RECEIPT:
        bytes = IDENTIFIER_BYTES;
        break;
    case MQ_J_WINDOW:
        sent = words[3] - words[1]; /* lower words are enough: a window is short */
        if (left >= 28 && sent <= 65535 && words[5] == sent && words[6] <= 65535)
            bytes = 28 + ITEM_BYTES * sent + 4ull * words[6];
        break;
    case MQ_J_QUEUED:
        bytes = 8 + (uint64_t)ITEM_BYTES * words[1];
        break;
    default:
        break;
    }
    return bytes <= left ? (uint32_t)bytes : 0;
}

/* True if the log, not a snapshot, makes room first. */
static bool by_log(const mq_journal *journal)
{
    return journal->writer->tail - journal->keep_from < journal->in_log;
}

/* Position from which the ring is still needed. */
static uint64_t needed_from(const mq_journal *journal)
{
    /* pairs with the release in rb_durable_store() */
    uint64_t durable = atomic_load_explicit(&journal->writer->header->durable, memory_order_acquire);
    return by_log(journal) && durable > journal->keep_from ? durable : journal->keep_from;
}

/* Append a record to the ring.  RB_OK, or RB_FULL: wait. */
static int append(mq_engine *engine, const char *kind, const void *bytes, uint32_t length)
{
    mq_journal *journal = &engine->journal;
    rb_writer *writer = journal->writer;
    rb_key key = {.bytes = kind, .length = 1, .hash = rb_crc32c(0, kind, 1)};
    uint64_t needs = 2 * rb_span(RB_RECORD_HEADER_BYTES + 8 + (uint64_t)length) + writer->chunk;
    if (writer->tail + needs > needed_from(journal) + writer->capacity) {
        journal->full = true;
        if (journal->waits_since == 0)
            journal->waits_since = engine->now_ms;
        return RB_FULL;
    }
    int result = rb_append(writer, &key, bytes, length, 0, engine->now_ns);
    if (result == RB_OK)
        rb_announce_end(writer);
    return result;
}

/* True if room is expected soon without a snapshot.  A snapshot now would have to contain the entries
 * without room, and would block all output until it is written. */
static bool is_soon(const mq_engine *engine)
{
    const mq_journal *journal = &engine->journal;
    return journal->full && !journal->torn && by_log(journal) &&
           engine->now_ms - journal->waits_since < LOG_PATIENCE_MS;
}

bool mq_journal_is_short(const mq_engine *engine)
{
    const mq_journal *journal = &engine->journal;
    return journal->writer != NULL && !by_log(journal) &&
           journal->writer->tail - journal->keep_from > journal->writer->capacity / 2;
}

bool mq_journal_needs(const mq_engine *engine)
{
    const mq_journal *journal = &engine->journal;
    return journal->writer != NULL &&
           (journal->full || journal->torn || journal->writer->tail >= journal->due_at) && !is_soon(engine);
}

/* Bytes of the complete entries that fit in one record. */
static uint32_t piece(const mq_journal *journal, uint32_t from)
{
    uint32_t bytes = 0;
    if (journal->used - from <= MQ_JOURNAL_PIECE_BYTES)
        return journal->used - from;
    while (bytes < MQ_JOURNAL_PIECE_BYTES)
        bytes += mq_journal_entry_bytes(journal->at + from + bytes, journal->used - from - bytes);
    return bytes;
}

bool mq_journal_flush(mq_engine *engine)
{
    mq_journal *journal = &engine->journal;
    uint32_t done = 0;
    /* no entries after a missing one: they would hide the loss from a restart */
    journal->stalled = journal->full = journal->torn;
    journal->open = 0;
    while (done < journal->used && !journal->stalled) {
        uint32_t bytes = piece(journal, done);
        journal->stalled = append(engine, "h", journal->at + done, bytes) != RB_OK;
        done += journal->stalled ? 0 : bytes;
    }
    if (done > 0) {
        memmove(journal->at, journal->at + done, journal->used - done);
        journal->used -= done;
    }
    if (!journal->full)
        journal->waits_since = 0;
    return !journal->stalled;
}

bool mq_journal_append_record(mq_engine *engine, const void *bytes, uint32_t length)
{
    if (engine->journal.writer == NULL)
        return true;
    /* The marks come first: a restart then knows which records were routed before this change of
     * subscriptions. */
    for (uint32_t i = 1; i < engine->ring_count; i++)
        mq_journal_mark(engine, i);
    bool written = mq_journal_written(engine) && length <= engine->journal.writer->largest / 2 &&
                   append(engine, "n", bytes, length) == RB_OK;
    if (!written)
        tear(&engine->journal);
    return written;
}

/* ---- snapshots ---- */

static uint8_t *put_item(uint8_t *to, uint64_t where, uint32_t options)
{
    return put_word(put_long(to, origin_of(where)), options & 0xff);
}

static uint64_t window_bytes(const mq_session *session)
{
    uint64_t receipts = session->receipts == NULL ? 0 : session->receipts->count;
    return 28 + ITEM_BYTES * (session->sent_next - session->sent_first) + 4ull * session->received_count +
           IDENTIFIER_BYTES * receipts;
}

static uint8_t *put_received(uint8_t *to, const mq_session *session)
{
    if (session->received == NULL) {
        for (uint32_t i = 0; i < session->received_count; i++)
            to = put_word(to, session->received_few[i]);
        return to;
    }
    for (uint32_t identifier = 1; identifier <= 65535; identifier++)
        if (session->received[identifier >> 3] >> (identifier & 7) & 1)
            to = put_word(to, identifier);
    return to;
}

/* Write the window.  A QoS 1 message of a group belongs to the group; here it only uses its number. */
static uint8_t *put_window(uint8_t *to, const mq_session *session)
{
    to = put_word(to, head(MQ_J_WINDOW, session->item.index));
    to = put_long(put_long(to, session->sent_first), session->sent_next);
    to = put_word(to, (uint32_t)(session->sent_next - session->sent_first));
    to = put_word(to, session->received_count);
    for (uint64_t n = session->sent_first; n < session->sent_next; n++) {
        const mq_entry *entry = &session->sent[n & (session->sent_capacity - 1)];
        bool groups = entry->options & MQ_OPTION_SHARED && (entry->options & MQ_OPTION_QOS) == 1;
        to = groups ? put_item(to, MQ_NOWHERE, 0) : put_item(to, entry->where, entry->options);
    }
    to = put_received(to, session);
    for (uint32_t i = 0; session->receipts != NULL && i < session->receipts->count; i++)
        to = put_receipt(to, session, &session->receipts->at[i]);
    return to;
}

/* True if a restart restores the entry to this queue. */
static bool is_kept(const mq_entry *entry)
{
    return entry->options & MQ_OPTION_QOS && !(entry->options & MQ_OPTION_SHARED) &&
           entry->where != MQ_NOWHERE;
}

static uint8_t *put_queue(uint8_t *to, const mq_session *session, uint32_t number)
{
    mq_walk walk = {0};
    uint32_t count = 0;
    uint8_t *first = NULL;
    while (mq_queue_next(session, &walk)) {
        mq_entry entry = mq_entry_at(walk.at);
        if (!is_kept(&entry))
            continue;
        if (first == NULL || count == MQ_JOURNAL_COUNT_MAX) {
            count = 0;
            first = put_word(to, head(MQ_J_QUEUED, number));
            to = first + 4;
        }
        to = put_item(to, entry.where, entry.options);
        put_word(first, ++count);
    }
    return to;
}

static uint64_t queue_bytes(const mq_session *session)
{
    return (session->queue_count / MQ_JOURNAL_COUNT_MAX + 1) * 8ull +
           (uint64_t)ITEM_BYTES * session->queue_count;
}

/* Bytes of unfinished records of a group's members, which return to the group after a restart. */
static uint64_t members_bytes(const mq_group *group)
{
    uint64_t bytes = group->returned == NULL ? 0 : queue_bytes(group->returned);
    for (uint32_t i = 0; i < group->count; i++)
        bytes += 24 + (uint64_t)ITEM_BYTES *
                          (group->members[i].session->queue_count + group->members[i].session->sent_next -
                           group->members[i].session->sent_first);
    return bytes;
}

static bool is_of(const mq_engine *engine, const mq_entry *entry, const mq_session *queue)
{
    return entry->options & MQ_OPTION_SHARED && entry->where != MQ_NOWHERE &&
           mq_subscription_ids_at(engine, entry->options >> MQ_OPTION_IDS_SHIFT)->group ==
               mq_handle(&queue->item);
}

static uint8_t *put_one(uint8_t *to, const mq_session *queue, const mq_entry *entry)
{
    uint32_t published = mq_share_published(entry->options);
    if (!(published & MQ_OPTION_QOS))
        return to;
    to = put_word(put_word(to, head(MQ_J_QUEUED, queue->item.index)), 1);
    return put_item(to, entry->where, published);
}

static uint8_t *put_members(uint8_t *to, const mq_engine *engine, const mq_session *queue)
{
    const mq_group *group = queue->group;
    for (uint32_t i = 0; i < group->count; i++) {
        const mq_session *member = group->members[i].session;
        if (member->item.generation != group->members[i].generation)
            continue;
        for (uint64_t n = member->sent_first; n < member->sent_next; n++) {
            const mq_entry *entry = &member->sent[n & (member->sent_capacity - 1)];
            if (is_of(engine, entry, queue) && (entry->options & MQ_OPTION_QOS) == 1)
                to = put_one(to, queue, entry);
        }
        mq_walk walk = {0};
        while (mq_queue_next(member, &walk)) {
            mq_entry entry = mq_entry_at(walk.at);
            if (is_of(engine, &entry, queue))
                to = put_one(to, queue, &entry);
        }
    }
    return group->returned == NULL ? to : put_queue(to, group->returned, queue->item.index);
}

static uint64_t section_bytes(const mq_session *session)
{
    uint64_t own = window_bytes(session) + queue_bytes(session);
    return session->group == NULL ? own : own + 20 * members_bytes(session->group) / ITEM_BYTES;
}

static uint8_t *put_section(uint8_t *to, const mq_engine *engine, const mq_session *session)
{
    to = session->group == NULL ? put_window(to, session) : put_members(to, engine, session);
    return put_queue(to, session, session->item.index);
}

uint8_t *mq_journal_sections(mq_engine *engine, uint32_t *next, uint64_t bytes_max, uint64_t *length)
{
    uint64_t bytes = 0;
    uint32_t from = *next, end = from;
    for (; end < engine->sessions.created && bytes < bytes_max; end++) {
        const mq_session *session = mq_slab_at(&engine->sessions, end);
        if (session->item.generation & 1 && session->kept)
            bytes += section_bytes(session);
    }
    uint8_t *at = malloc(bytes + 1), *to = at;
    for (uint32_t i = from; at != NULL && i < end; i++) {
        const mq_session *session = mq_slab_at(&engine->sessions, i);
        if (session->item.generation & 1 && session->kept)
            to = put_section(to, engine, session);
    }
    *next = end < engine->sessions.created ? end : UINT32_MAX;
    *length = at == NULL ? 0 : (uint64_t)(to - at);
    return at;
}

void mq_journal_section(mq_engine *engine, const mq_session *session)
{
    uint64_t bytes = section_bytes(session);
    uint8_t *to = bytes > UINT32_MAX / 4 ? NULL : collect(&engine->journal, (uint32_t)bytes);
    if (to == NULL)
        return;
    uint8_t *end = put_section(to, engine, session);
    engine->journal.used -= (uint32_t)(bytes - (uint64_t)(end - to));
}

void mq_journal_open(mq_engine *engine, rb_writer *writer, uint64_t from, bool output_waits, uint64_t in_log)
{
    mq_journal_close(engine);
    engine->journal.writer = writer;
    engine->journal.output_waits = output_waits;
    engine->journal.in_log = in_log;
    mq_journal_snapshot_saved(engine, from, writer->capacity / 4);
    for (uint32_t i = 1; i < engine->ring_count; i++)
        if (engine->rings[i] != NULL)
            engine->rings[i]->marked = UINT64_MAX; /* the next mark covers everything */
}

void mq_journal_snapshot_saved(mq_engine *engine, uint64_t from, uint64_t due_bytes)
{
    mq_journal *journal = &engine->journal;
    if (journal->writer == NULL)
        return;
    uint64_t half = journal->writer->capacity / 2;
    journal->keep_from = from;
    journal->due_at = from + (due_bytes < half ? due_bytes : half);
    journal->full = false;
    journal->request = (mq_request){0};
    journal->torn = journal->torn_since;
    journal->torn_since = false;
    journal->stalled = journal->torn; /* the next flush updates it; without entries there is no flush */
}

bool mq_journal_end(mq_engine *engine, bool at_once)
{
    mq_journal *journal = &engine->journal;
    if (!mq_journal_written(engine) && is_soon(engine) && !at_once) {
        journal->request = (mq_request){0};
        return false;
    }
    mq_request_sent(engine, &journal->request);
    journal->torn |= journal->used > 0;
    journal->torn_since = false;
    journal->used = journal->open = 0;
    return true;
}

void mq_journal_close(mq_engine *engine)
{
    bool replaying = engine->journal.replaying;
    free(engine->journal.at);
    engine->journal = (mq_journal){.replaying = replaying};
    mq_reap_barrier(engine);
}
