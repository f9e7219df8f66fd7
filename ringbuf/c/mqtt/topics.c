/* SPDX-License-Identifier: Apache-2.0
 *
 * Topics: the table of topics by name, and the rings to which their records are written or from which they
 * come.
 *
 * The table uses open addressing with linear probing over {upper half of the hash, index + 1}, and is at most
 * three quarters full.  A removal shifts back the entries after it, so there are no tombstones.  Names come
 * from clients, so the hash is keyed against colliding names, and the number and the bytes of names are
 * bounded.  Each level may cost a dict in edge.topics, so a name with many levels counts for more bytes.
 */
#include "hash.h"
#include "packets.h"

#include <stdlib.h>
#include <string.h>

#define TABLE_MIN 1024u
#define LEVELS_FREE 8u /* covered by the 400 bytes of every topic */
#define LEVEL_BYTES 128u
#define PUMP_MAX 4096u /* records read from one source in its turn */

/* ---- table ---- */

uint64_t mq_hash(const mq_engine *engine, const void *bytes, uint32_t length)
{
    return rb_hash(engine->seed, bytes, length);
}

static uint64_t table_word(const mq_topic *topic)
{
    return (topic->hash & 0xffffffff00000000u) | (topic->item.index + 1);
}

/* Home index of a word or a hash.  The topic is not read: growing the table would wait for each topic's
 * memory. */
static uint32_t table_home(const mq_engine *engine, uint64_t word)
{
    return (uint32_t)(word >> 32) & (engine->table_room - 1);
}

static void table_put(mq_engine *engine, uint64_t word)
{
    uint32_t mask = engine->table_room - 1, at = table_home(engine, word);
    while (engine->table[at] != 0)
        at = (at + 1) & mask;
    engine->table[at] = word;
}

static bool table_resize(mq_engine *engine, uint32_t room)
{
    uint64_t *table = calloc(room, sizeof *table), *old = engine->table;
    if (table == NULL)
        return false;
    uint32_t old_room = engine->table_room;
    engine->table = table;
    engine->table_room = room;
    for (uint32_t i = 0; i < old_room; i++)
        if (old[i] != 0)
            table_put(engine, old[i]);
    free(old);
    return true;
}

static void table_remove(mq_engine *engine, const mq_topic *topic)
{
    uint32_t mask = engine->table_room - 1, hole = table_home(engine, topic->hash);
    while (engine->table[hole] != table_word(topic))
        hole = (hole + 1) & mask;
    for (uint32_t at = (hole + 1) & mask; engine->table[at] != 0; at = (at + 1) & mask) {
        uint32_t home = table_home(engine, engine->table[at]);
        if (((at - home) & mask) >=
            ((at - hole) & mask)) { /* its home is not after the hole: it may move there */
            engine->table[hole] = engine->table[at];
            hole = at;
        }
    }
    engine->table[hole] = 0;
}

mq_topic *mq_topic_find(const mq_engine *engine, const void *name, uint32_t length)
{
    if (engine->table_room == 0)
        return NULL;
    uint64_t hash = mq_hash(engine, name, length);
    uint32_t mask = engine->table_room - 1;
    for (uint32_t at = table_home(engine, hash); engine->table[at] != 0; at = (at + 1) & mask) {
        if ((engine->table[at] ^ hash) >> 32 != 0)
            continue;
        mq_topic *topic = mq_slab_at(&engine->topics, (uint32_t)engine->table[at] - 1);
        if (topic->length == length && memcmp(topic->name, name, length) == 0)
            return topic;
    }
    return NULL;
}

/* Bytes that a name adds to topics_bytes. */
static uint64_t name_bytes(const uint8_t *name, uint32_t length)
{
    uint32_t levels = 1;
    for (uint32_t i = 0; i < length; i++)
        levels += name[i] == '/';
    return length + (levels > LEVELS_FREE ? (uint64_t)(levels - LEVELS_FREE) * LEVEL_BYTES : 0);
}

mq_topic *mq_topic_add(mq_engine *engine, const void *name, uint32_t length, uint16_t source, bool reserved)
{
    uint64_t bytes = name_bytes(name, length);
    if (engine->topics.live >= engine->limits.topics_max ||
        engine->counters.topics_bytes + bytes > engine->limits.topics_max_bytes ||
        (engine->topics.live >= engine->table_room / 4 * 3 &&
         !table_resize(engine, engine->table_room ? engine->table_room * 2 : TABLE_MIN)))
        return NULL;
    uint8_t *copy = malloc(length ? length : 1);
    mq_topic *topic = copy == NULL ? NULL : mq_slab_take(&engine->topics);
    if (topic == NULL) {
        free(copy);
        return NULL;
    }
    memcpy(copy, name, length);
    topic->name = copy;
    topic->length = (uint16_t)length;
    topic->source = source;
    topic->reserved = reserved;
    topic->used = true;
    topic->hash = mq_hash(engine, name, length);
    topic->key_hash = rb_crc32c(0, name, length);
    table_put(engine, table_word(topic));
    engine->counters.topics_bytes += bytes;
    return topic;
}

void mq_topic_owned(mq_engine *engine, mq_topic *topic, mq_owner *owner)
{
    mq_owner_use(topic->owner, MQ_OWNED_TOPICS, -1);
    mq_owner_drop(engine, topic->owner);
    topic->owner = mq_owner_again(owner);
    mq_owner_use(owner, MQ_OWNED_TOPICS, 1);
}

void mq_topic_free(mq_engine *engine, mq_topic *topic)
{
    table_remove(engine, topic);
    mq_retained_forget(engine, topic);
    mq_routes_free(engine, topic);
    mq_topic_owned(engine, topic, NULL);
    engine->counters.topics_bytes -= name_bytes(topic->name, topic->length);
    free(topic->name);
    mq_slab_give(&engine->topics, &topic->item);
}

/* True if a valid filter matches a valid name, as defined by edge.mqtt.topics.matches(). */
bool mq_filter_matches(const char *filter, uint32_t filter_length, const char *name, uint32_t name_length)
{
    const char *f = filter, *f_end = filter + filter_length, *n = name, *n_end = name + name_length;
    if (name_length > 0 && *n == '$' && filter_length > 0 && (*f == '+' || *f == '#')) /* 4.7.2-1 */
        return false;
    for (;;) { /* one level of each per round */
        if (f < f_end && *f == '#')
            return true;
        if (f < f_end && *f == '+') {
            f++;
            while (n < n_end && *n != '/')
                n++;
        } else {
            while (f < f_end && n < n_end && *f != '/' && *f == *n)
                f++, n++;
        }
        if (n == n_end) /* `a/#` also matches `a` */
            return f == f_end || (f_end - f == 2 && f[0] == '/' && f[1] == '#');
        if (f == f_end || *f != '/' || *n != '/')
            return false;
        f++;
        n++;
    }
}

/* Advance the clock hand by at most `steps`.  A topic used since its last visit is spared once. */
mq_topic *mq_topic_idle(mq_engine *engine, uint32_t *steps)
{
    while (*steps > 0 && engine->topics.made > 0) {
        mq_topic *topic = mq_slab_at(&engine->topics, engine->clock_hand);
        engine->clock_hand = (engine->clock_hand + 1) % engine->topics.made;
        --*steps;
        if (!(topic->item.generation & 1) || topic->retained != NULL || topic->changed || topic->unshown > 0)
            continue;
        if (!topic->used)
            return topic;
        topic->used = false;
    }
    return NULL;
}

/* Two rounds: a topic spared in the first round may be found in the second. */
mq_topic *mq_topic_recyclable(mq_engine *engine)
{
    uint32_t steps = 2 * engine->topics.made;
    return mq_topic_idle(engine, &steps);
}

/* Free memory of removed topics.  Without memory for a smaller table, the table stays as it is. */
void mq_topics_trim(mq_engine *engine)
{
    uint32_t room = engine->table_room;
    while (room > TABLE_MIN && engine->topics.live < room / 8)
        room /= 2;
    if (room < engine->table_room)
        table_resize(engine, room);
    mq_slab_trim(&engine->topics);
}

/* ---- appending ---- */

/* Handle a full ring.  A foreign reader that blocks for the queue timeout is evicted; the broker's own
 * readers never are, and `hidden` records are never overwritten. */
static int append_full(mq_engine *engine, mq_source *source, const rb_key *key, const mq_message *message,
                       bool hidden)
{
    if (source->full_since_ms == 0)
        source->full_since_ms = engine->now_ms;
    if (engine->now_ms - source->full_since_ms < source->queue_timeout_ms)
        return source->blocks ? RB_FULL : RB_TIMEOUT;
    if (!hidden &&
        rb_evict_stalled(source->writer, message->payload_length, key->length + key->properties_length) > 0 &&
        rb_append(source->writer, key, message->payload, message->payload_length, (uint16_t)message->flags,
                  engine->now_ns) == RB_OK)
        return RB_OK;
    return RB_TIMEOUT;
}

/* Limit of the space that a ring may overwrite beyond its tail for one record: the span, as much again to
 * fill the end, and the memory taken ahead. */
static uint64_t append_room(const rb_writer *writer, uint64_t prefix, uint64_t payload)
{
    return 2 * rb_span(RB_RECORD_HEADER_BYTES + prefix + 7 + payload) + RB_RECORD_ALIGN + writer->chunk;
}

/* Prepare for the ring to pass a mark: needed records are copied, and the journal has all routed ones, so
 * that a restart finds every session that waits for a copy.  RB_FULL: wait; RB_TIMEOUT: refuse. */
static int make_way(mq_engine *engine, uint32_t index, uint64_t room)
{
    mq_source *source = engine->sources[index];
    mq_journal_mark(engine, index);
    mq_retained_due(engine, source);
    if (!mq_journal_written(engine))
        return RB_FULL;
    if (mq_spill_own(engine, index, room))
        return RB_OK;
    engine->counters.spill_refused++;
    if (source->full_since_ms == 0)
        source->full_since_ms = engine->now_ms;
    bool waits = source->blocks && engine->now_ms - source->full_since_ms < source->queue_timeout_ms;
    return waits ? RB_FULL : RB_TIMEOUT;
}

static int append(mq_engine *engine, mq_topic *topic, const mq_message *message, uint64_t *end)
{
    mq_source *source = engine->sources[topic->source];
    rb_key key = {.bytes = topic->name,
                  .length = topic->length,
                  .hash = topic->key_hash,
                  .properties = message->properties,
                  .properties_length = message->properties_length};
    uint64_t room = append_room(source->writer, topic->length + message->properties_length,
                                message->payload_length);
    if (mq_level_refusal(engine, source) != 0)
        return RB_TIMEOUT;
    int way = source->writer->tail + room > source->copy_at ? make_way(engine, topic->source, room) : RB_OK;
    if (way != RB_OK)
        return way;
    bool hides = source->level.hides,
         hidden = hides && mq_unshown_reserve(engine, topic->source, room) != RB_OK;
    int result = hidden ? RB_FULL
                        : rb_append(source->writer, &key, message->payload, message->payload_length,
                                    (uint16_t)message->flags, engine->now_ns);
    if (result == RB_FULL)
        result = append_full(engine, source, &key, message, hidden);
    if (result != RB_OK)
        return result;
    source->full_since_ms = 0;
    topic->used = true;
    *end = mq_level_end(source);
    engine->appended_bytes += RB_RECORD_HEADER_BYTES + topic->length + message->properties_length +
                              message->payload_length;
    engine->counters.published++;
    engine->counters.published_bytes += message->payload_length;
    if (!source->dirty) {
        source->dirty = true;
        mq_list_add(&engine->published, topic->source);
    }
    if (hides) {
        mq_unshown_add(engine, source, topic, message);
        return RB_OK;
    }
    if (message->flags & RB_FLAG_RETAIN)
        mq_retain(engine, topic, message, mq_where(topic->source, source->writer->claim_at));
    engine->matched = 0;
    if (topic->route_count > 0)
        engine->matched = mq_route_record(engine, topic, mq_where(topic->source, source->writer->claim_at),
                                          message);
    engine->turn_work += engine->matched;
    return RB_OK;
}

/* A message that cannot be retained is stored without RETAIN: current subscribers get it, and a restart does
 * not retain it from the ring. */
int mq_append(mq_engine *engine, mq_topic *topic, const mq_message *message, uint64_t *end)
{
    if (!(message->flags & RB_FLAG_RETAIN) || mq_retained_fits(engine, topic, message))
        return append(engine, topic, message, end);
    mq_message plain = *message;
    plain.flags &= ~(uint32_t)RB_FLAG_RETAIN;
    int result = append(engine, topic, &plain, end);
    engine->counters.retained_refused += result == RB_OK;
    return result;
}

/* ---- source rings ---- */

/* Pass the name of an unknown topic of a source to Python.  The name is copied because the ring may change.
 * */
static void source_asks(mq_engine *engine, mq_source *source, const uint8_t *name, uint32_t length)
{
    free(source->name);
    source->name = malloc(length ? length : 1);
    source->name_length = source->name == NULL ? 0 : length;
    if (source->name != NULL)
        memcpy(source->name, name, length);
    source->waiting = engine->sources_waiting = engine->sources_asking = true;
    source->judged = source->reported = false;
}

static void name_forget(mq_source *source)
{
    free(source->name);
    source->name = NULL;
}

/* True if Python got a request for this topic and did not create it. */
static bool source_refused(const mq_source *source, const uint8_t *name, uint32_t length)
{
    return source->name != NULL && !source->judged && source->name_length == length &&
           memcmp(source->name, name, length) == 0;
}

/* Message of a view; payload and properties are still in the ring. */
static mq_message source_message(const rb_view *view)
{
    uint32_t flags = view->header.flags & (RB_FLAG_QOS | RB_FLAG_RETAIN);
    return (mq_message){.payload = view->bytes + view->parts.payload_position,
                        .payload_length = view->parts.payload_length,
                        .flags = (flags & RB_FLAG_QOS) == 3 ? flags ^ 1 : flags,
                        .timestamp_ns = view->header.timestamp_ns};
}

/* Retain the message of a source's record if the record requests it.  A copy of its properties is checked as
 * for a client.  Errors are counted when the record itself is delivered. */
static void source_retain(mq_engine *engine, uint32_t index, mq_topic *topic, const rb_view *view,
                          mq_message message)
{
    uint32_t length = view->parts.properties_length;
    mq_properties checked = {0};
    if (length > MQ_READ_BYTES)
        return;
    if (length > 0) {
        uint8_t *copy = engine->receive + MQ_CARRY_BYTES; /* behind the name */
        memcpy(copy, view->bytes + view->parts.properties_position, length);
        if (mq_properties_of_publish(engine, copy, copy + length, &checked) != 0 || checked.subscriptions ||
            checked.end != copy + length)
            return;
    }
    message.properties = checked.stored;
    message.properties_length = checked.stored_length;
    message.flags |= checked.flags;
    if (!mq_retained_fits(engine, topic, &message)) {
        engine->counters.retained_refused++;
        return;
    }
    mq_retain(engine, topic, &message, mq_where(index, view->position));
    if (!rb_reader_holds(engine->sources[index]->reader, view->position))
        mq_retained_forget(engine, topic);
}

/* Route one record of a source.  False: its topic is unknown.  The ring may change at any time, so only
 * copies are used; rb_reader_holds() or a different key at delivery reveals a change. */
static bool source_route(mq_engine *engine, uint32_t index, mq_source *source, const rb_view *view)
{
    uint8_t *name = engine->receive; /* not in use now, and longer than any key */
    uint32_t length = view->header.key_length;
    memcpy(name, view->bytes + RB_RECORD_HEADER_BYTES, length);
    if (!rb_reader_holds(source->reader, view->position)) {
        engine->counters.source_lost++;
        return true;
    }
    mq_topic *topic = mq_topic_find(engine, name, length);
    if (topic == NULL && !source_refused(source, name, length)) {
        source_asks(engine, source, name, length);
        return false;
    }
    name_forget(source);
    if (topic == NULL || topic->reserved) {
        engine->counters.dropped[topic == NULL ? MQ_DROP_TOPICS : MQ_DROP_DENIED]++;
        return true;
    }
    mq_message message = source_message(view);
    topic->used = true;
    engine->counters.sourced++;
    engine->appended_bytes += view->header.length;
    if (view->header.flags & RB_FLAG_RETAIN)
        source_retain(engine, index, topic, view, message);
    mq_route_record(engine, topic, mq_where(index, view->position), &message);
    return true;
}

static void source_pump(mq_engine *engine, uint32_t index, mq_source *source)
{
    rb_reader *reader = source->reader;
    for (uint32_t i = 0; i < PUMP_MAX; i++) {
        uint64_t cursor = reader->cursor, offset = reader->offset, lost = reader->lost;
        rb_view view;
        int result = rb_read(reader, &view);
        if (result == RB_EMPTY)
            return;
        engine->sources_moved = source->moved = true;
        if (result == RB_OVERRUN) {
            engine->counters.source_lost += reader->lost - lost;
            continue;
        }
        if (result == RB_EVICTED) { /* evicted as too slow: continue as a plain reader */
            engine->counters.source_evictions++;
            reader->gating = false;
            continue;
        }
        if (result != RB_OK) {
            source->bad = engine->sources_asking = true;
            source->reported = false;
            return;
        }
        if (view.position >= source->resume_at && !source_route(engine, index, source, &view)) {
            reader->cursor = cursor;
            reader->offset = offset;
            return;
        }
    }
    engine->sources_pending = true;
}

/* Store the read positions of sources, so that writers blocked by this reader continue.  Called after routed
 * records had a chance to be sent, because a blocked writer overwrites them soon. */
void mq_sources_tell(mq_engine *engine)
{
    engine->sources_moved = false;
    for (uint32_t i = 1; i < engine->source_count; i++) {
        mq_source *source = engine->sources[i];
        if (source->moved)
            rb_reader_tell(source->reader, source->reader->cursor);
        source->moved = false;
    }
}

void mq_sources_pump(mq_engine *engine)
{
    engine->sources_pending = false;
    for (uint32_t i = 1; i < engine->source_count; i++) {
        mq_source *source = engine->sources[i];
        if (source->kind == MQ_SOURCE_FOREIGN && !source->waiting && !source->bad)
            source_pump(engine, i, source);
        if (source->kind == MQ_SOURCE_FOREIGN && source->reader->cursor > source->copy_at) {
            mq_spill_foreign(engine, i);
            mq_journal_mark(engine, i);
        }
    }
}
