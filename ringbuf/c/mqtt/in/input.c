/* SPDX-License-Identifier: Apache-2.0
 *
 * Input memory: unconsumed input of each connection, and the limit of its total.
 *
 * Input that the parser cannot finish stays in connection->in.  The memory of all of them is counted
 * (counters.unfinished_bytes) and bounded by limits.unfinished_max_bytes:
 *
 *   used memory below 3/4 of the limit: every connection is read, up to MQ_READ_BYTES at a time
 *   used memory above 3/4 of the limit: a connection with less than MQ_INPUT_MIN is read up to that, which is
 *                     enough for small packets; the others are not read (MQ_STOP_INPUT) and wait
 *   used memory below the limit: waiting connections continue: short packets before long ones, but first
 *                     those that have waited for TOO_LONG_MS.  Each gets a promise of memory for the rest of
 *                     its packet, so that the packet ends without another wait
 *   used memory at the limit for WAIT_MS: connections are closed until the others have room: first those
 *                     without an accepted CONNECT, then those with an equal share or more.  In both groups,
 *                     connections with the oldest packet are closed first, and none below the last of
 *                     AGES_MS.  The time of waiting does not count
 *
 * Invariants: memory plus promises are at most the limit, plus one packet and MQ_INPUT_MIN per connection.  A
 * waiting connection always continues: a connection with a promise finishes its packet, or is closed when it
 * is slow.  If no promise exists, the first that waits gets one, whatever the use.
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>
#include <string.h>

#define KEEP_BYTES (32u << 20) /* memory kept for the next packets */
#define READ_MIN_BYTES 16384u
#define PAGE_BYTES ((uintptr_t)4096)
#define CHUNK_HEAD_BYTES 64u /* upper limit of malloc()'s data in a free chunk */
#define WAIT_MS 250u
#define TOO_LONG_MS 4000u
/* Longest missing rest of a packet in each FIFO. */
static const uint64_t LINES_BYTES[MQ_MEMORY_FIFOS] = {64 << 10, 1 << 20, UINT64_MAX};
static const uint32_t AGES_MS[] = {16000, 4000, 1000};

static uint32_t carried(const mq_connection *connection)
{
    return connection->in.end - connection->in.start;
}

static uint64_t rest_of(const mq_connection *connection)
{
    uint32_t have = carried(connection);
    return connection->need > have ? connection->need - have : MQ_INPUT_MIN;
}

static uint64_t in_use(const mq_engine *engine)
{
    return engine->counters.unfinished_bytes + engine->in_promised;
}

static bool is_full(const mq_engine *engine)
{
    return in_use(engine) >= engine->limits.unfinished_max_bytes;
}

static bool any_waits(const mq_engine *engine)
{
    return engine->memory_waiters[0].first != NULL || engine->memory_waiters[1].first != NULL ||
           engine->memory_waiters[2].first != NULL;
}

/* True if memory is scarce for connections without a promise. */
static bool is_scarce(const mq_engine *engine)
{
    uint64_t bytes_max = engine->limits.unfinished_max_bytes;
    return any_waits(engine) || in_use(engine) >= bytes_max - bytes_max / 4;
}

/* ---- memory ---- */

void mq_input_promised(mq_engine *engine, mq_connection *connection, uint32_t bytes)
{
    uint32_t done = bytes < connection->in_promised ? bytes : connection->in_promised;
    connection->in_promised -= done;
    engine->in_promised -= done;
}

void mq_input_begins(mq_engine *engine, mq_connection *connection)
{
    connection->in_since_ms = engine->now_ms;
    mq_input_promised(engine, connection, UINT32_MAX);
}

/* Pages of a large total are returned to the system at once.  free() would keep them, and malloc_trim() would
 * block all other allocations for a tenth of a second.  The first and the last page stay: free() writes to
 * them. */
static void pages_give_back(const mq_engine *engine, const mq_bytes *in)
{
    if (engine->counters.unfinished_bytes < KEEP_BYTES || in->capacity < 2 * PAGE_BYTES)
        return;
    uintptr_t begin = ((uintptr_t)in->at + CHUNK_HEAD_BYTES + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
    uintptr_t end = ((uintptr_t)in->at + in->capacity - CHUNK_HEAD_BYTES) & ~(PAGE_BYTES - 1);
    if (begin < end)
        rb_memory_clear((void *)begin, end - begin);
}

static void bytes_free(mq_engine *engine, mq_bytes *in)
{
    pages_give_back(engine, in);
    engine->counters.unfinished_bytes -= in->capacity;
    mq_bytes_free(engine, in);
}

void mq_input_free(mq_engine *engine, mq_connection *connection)
{
    mq_input_promised(engine, connection, UINT32_MAX);
    bytes_free(engine, &connection->in);
}

static bool reserve(mq_engine *engine, mq_connection *connection, uint32_t more)
{
    uint32_t before = connection->in.capacity;
    bool done = mq_bytes_reserve(engine, &connection->in, more);
    engine->counters.unfinished_bytes += (uint64_t)connection->in.capacity - before;
    return done;
}

/* Keep `length` bytes that are outside connection->in. */
void mq_input_keep(mq_engine *engine, mq_connection *connection, const uint8_t *bytes, uint32_t length)
{
    mq_bytes *in = &connection->in;
    if (length == 0 || connection->stop == MQ_STOP_CLOSING) {
        mq_input_free(engine, connection);
        return;
    }
    if (in->capacity < length || in->capacity / 4 > length) {
        bytes_free(engine, in);
        uint32_t capacity = (length + 63) & ~63u;
        if ((in->at = malloc(capacity)) == NULL) {
            mq_connection_close(engine, connection, MQ_CLOSE_MEMORY);
            return;
        }
        in->capacity = capacity;
        engine->counters.unfinished_bytes += capacity;
    }
    memcpy(in->at, bytes, length);
    in->start = 0;
    in->end = length;
}

/* ---- receiving ---- */

static uint8_t *wait_in_line(mq_engine *engine, mq_connection *connection)
{
    if (!any_waits(engine))
        engine->starved_due_ms = engine->now_ms + WAIT_MS;
    engine->counters.input_waits++;
    connection->stop = MQ_STOP_INPUT;
    connection->in_waits_since_ms = engine->now_ms;
    uint32_t number = 0;
    while (rest_of(connection) > LINES_BYTES[number])
        number++;
    mq_fifo_add(&engine->memory_waiters[number], &connection->turn);
    return NULL;
}

/* Bytes that may be read from a connection now: its part if many are ready in this round.  The minimum is
 * MQ_INPUT_MIN for a connection in a large packet, otherwise READ_MIN_BYTES, which saves system calls. */
static uint32_t read_bytes(const mq_engine *engine, uint32_t least)
{
    uint32_t part = engine->read_bytes > least ? engine->read_bytes : least;
    return part < MQ_READ_BYTES ? part : MQ_READ_BYTES;
}

/* Place for the next input: in the shared buffer after the unconsumed input, or, for a packet too long to be
 * carried over, in the connection's own buffer, which grows with received bytes.  NULL: the connection waits
 * for memory (MQ_STOP_INPUT), or no memory. */
uint8_t *mq_receive_buffer(mq_engine *engine, mq_connection *connection, uint32_t *capacity)
{
    const mq_bytes *in = &connection->in;
    uint32_t have = carried(connection);
    bool scarce = connection->in_promised == 0 && is_scarce(engine);
    if (scarce && have >= MQ_INPUT_MIN)
        return wait_in_line(engine, connection);
    if (have <= MQ_CARRY_BYTES) {
        if (have > 0)
            memcpy(engine->receive, in->at + in->start, have);
        *capacity = scarce ? MQ_INPUT_MIN - have : read_bytes(engine, READ_MIN_BYTES);
        return engine->receive + have;
    }
    uint32_t wanted = connection->need > have ? connection->need - have : 1;
    uint32_t part = read_bytes(engine, MQ_INPUT_MIN);
    *capacity = wanted < part ? wanted : part;
    return reserve(engine, connection, *capacity) ? in->at + in->end : NULL;
}

/* ---- connections that wait for memory ---- */

static bool is_waiting(const mq_connection *connection)
{
    return connection->stop == MQ_STOP_INPUT;
}

/* The first connection of a FIFO; NULL: it is empty. */
static mq_connection *first_of(const mq_fifo *fifo)
{
    return fifo->first == NULL ? NULL : MQ_LINKED(fifo->first, mq_connection, turn);
}

static mq_fifo *next_fifo(mq_engine *engine)
{
    mq_fifo *shortest = NULL, *longest = NULL;
    uint64_t since_ms = engine->now_ms < TOO_LONG_MS ? 0 : engine->now_ms - TOO_LONG_MS;
    for (int i = 0; i < MQ_MEMORY_FIFOS; i++) {
        const mq_connection *first = first_of(&engine->memory_waiters[i]);
        if (first == NULL)
            continue;
        if (shortest == NULL)
            shortest = &engine->memory_waiters[i];
        if (first->in_waits_since_ms < since_ms) {
            since_ms = first->in_waits_since_ms;
            longest = &engine->memory_waiters[i];
        }
    }
    return longest != NULL ? longest : shortest;
}

/* Bytes that all waiting connections lack, at most the limit of all input memory. */
static uint64_t all_wanted(const mq_engine *engine)
{
    uint64_t bytes = 0, bytes_max = engine->limits.unfinished_max_bytes;
    for (int i = 0; i < MQ_MEMORY_FIFOS; i++) {
        const mq_link *link = engine->memory_waiters[i].first;
        for (; link != NULL && bytes < bytes_max; link = link->next)
            bytes += rest_of(MQ_LINKED(link, const mq_connection, turn));
    }
    return bytes;
}

static void promise(mq_engine *engine, mq_connection *connection)
{
    connection->in_promised = (uint32_t)rest_of(connection);
    engine->in_promised += connection->in_promised;
    connection->in_since_ms += engine->now_ms - connection->in_waits_since_ms;
    connection->stop = MQ_RUN;
    mq_fifo_leave(&connection->turn);
    if (connection->version != 0)
        connection->last_seen_ms = engine->now_ms;
}

static bool may_continue(const mq_engine *engine)
{
    return engine->in_promised == 0 || !is_full(engine);
}

static void let_continue(mq_engine *engine)
{
    for (mq_fifo *fifo; may_continue(engine) && (fifo = next_fifo(engine)) != NULL;)
        promise(engine, first_of(fifo));
    engine->starved_due_ms = engine->now_ms + WAIT_MS;
}

/* ---- closing ---- */

/* True if the connection waits only for its own client. */
static bool may_be_closed(const mq_connection *connection)
{
    return connection->item.generation & 1 && connection->in.capacity >= MQ_INPUT_MIN &&
           (connection->stop == MQ_RUN || connection->stop == MQ_STOP_INPUT ||
            connection->stop == MQ_STOP_OUT);
}

static uint64_t held_by(const mq_connection *connection)
{
    return (uint64_t)connection->in.capacity + connection->in_promised;
}

/* Average memory of the connections that may be closed; at least one of them has that much. */
static uint64_t equal_share(const mq_engine *engine)
{
    uint64_t bytes = 0, holders = 0;
    for (uint32_t i = 0; i < engine->connections.created; i++) {
        const mq_connection *connection = mq_slab_at(&engine->connections, i);
        if (may_be_closed(connection)) {
            bytes += held_by(connection);
            holders++;
        }
    }
    return holders > 0 ? bytes / holders : 0;
}

static uint64_t age_ms(const mq_engine *engine, const mq_connection *connection)
{
    uint64_t until_ms = is_waiting(connection) ? connection->in_waits_since_ms : engine->now_ms;
    return until_ms - connection->in_since_ms;
}

/* Close connections that use `share` or more for a packet older than `min_ms`.  Returns the bytes freed. */
static uint64_t close_some(mq_engine *engine, bool accepted, uint64_t share, uint32_t min_ms, uint64_t wanted)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < engine->connections.created && bytes < wanted; i++) {
        mq_connection *connection = mq_slab_at(&engine->connections, i);
        if (!may_be_closed(connection) || (connection->version != 0) != accepted ||
            held_by(connection) < share || age_ms(engine, connection) < min_ms)
            continue;
        bytes += held_by(connection);
        mq_connection_close(engine, connection, MQ_CLOSE_UNFINISHED);
    }
    return bytes;
}

static void make_room(mq_engine *engine)
{
    uint64_t wanted = all_wanted(engine), share = equal_share(engine), closed = 0;
    for (int accepted = 0; accepted < 2; accepted++)
        for (size_t i = 0; i < sizeof AGES_MS / sizeof *AGES_MS && closed < wanted; i++)
            closed += close_some(engine, accepted, accepted ? share : 0, AGES_MS[i], wanted - closed);
    engine->starved_due_ms = engine->now_ms + WAIT_MS;
}

void mq_input_step(mq_engine *engine)
{
    if (!any_waits(engine))
        return;
    if (is_full(engine) && engine->now_ms >= engine->starved_due_ms)
        make_room(engine);
    if (may_continue(engine))
        let_continue(engine);
}

uint64_t mq_input_due_ms(const mq_engine *engine)
{
    return !any_waits(engine) ? MQ_NEVER : may_continue(engine) ? 0 : engine->starved_due_ms;
}
