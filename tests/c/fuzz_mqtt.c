/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile client against the hot path: any bytes, in any pieces, in any version.  For libFuzzer.
 *
 *   input   byte 0: protocol level (3, 4, 5), whether the client is trusted, whether it and the second
 *           client have tenants, and whether earlier delayed messages are counted; byte 1: how long pieces
 *           are; the rest: what the client sends after its CONNECT was accepted
 *
 * Python's part is played here: each unknown topic becomes known, or is denied or skipped, and
 * both the sender and a second client subscribe to it, also if they are in different name spaces: nothing may
 * be delivered then.  What is received is kept at the very end of memory
 * that may be read, so that AddressSanitizer sees one byte too many.
 */
#include <sanitizer/asan_interface.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mqtt/mqtt.h"
#include "mqtt/in/reason_codes.h"
#include "must.h"

#define CAPACITY RB_CAPACITY_MIN_BYTES
#define MADE_NS 1700000000000000000u

static _Alignas(4096) uint8_t ring[RB_HEADER_BYTES + CAPACITY];
static _Alignas(4096) uint8_t cursors[RB_CURSORS_BYTES], own[RB_CURSORS_BYTES];

typedef struct play {
    mq_engine *engine;
    mq_connection *sender, *other;
    uint16_t ring;
    uint32_t asked;
} play;

static mq_connection *client(play *play, uint8_t version, bool trusted, uint32_t window, mq_tenant *tenant)
{
    mq_connection *connection = mq_connection_open(play->engine, -1, 0);
    mq_session *session = mq_slab_take(&play->engine->sessions);
    must(connection != NULL && session != NULL, "there is memory");
    session->queue_max = 64;
    mq_connection_settings settings = {.idle_max_ms = 60000,
                                       .window = window,
                                       .send_max_bytes = version == 5 ? 400 : 0,
                                       .alias_max = version == 5 ? 3 : 0,
                                       .version = version,
                                       .trusted = trusted,
                                       .tenant = tenant};
    mq_connection_attach(play->engine, connection, session, &settings);
    connection->known = true;
    return connection;
}

static void route(mq_engine *engine, mq_topic *topic, const mq_connection *connection, uint32_t options)
{
    if (connection->session != NULL)
        mq_route_set(engine, topic, connection->session, options);
}

static void skip(mq_connection *connection, uint8_t reason)
{
    connection->answered = true;
    connection->refusal_reason = reason;
}

/* Answer of Python about a topic: every seventh is denied, every eleventh skipped. */
static void answer_topic(play *play, mq_connection *connection, const mq_event *event)
{
    const uint8_t *name = connection->in.at + connection->in.start + event->at;
    uint32_t length = event->length, asked = ++play->asked;
    if (event->detail != 0) { /* the name that an alias stands for */
        name = connection->aliases[event->detail - 1].name;
        length = connection->aliases[event->detail - 1].length;
    } else if (connection->tenant != NULL) {
        length = mq_tenant_full_name(play->engine, connection->tenant, name, length, &name);
    }
    if (asked % 11 == 0) {
        skip(connection, MQ_REASON_TOPIC_NAME_INVALID);
        return;
    }
    mq_topic *topic = mq_topic_find(play->engine, name, length);
    if (topic == NULL)
        topic = mq_topic_add(play->engine, name, length, play->ring, false);
    if (topic == NULL) {
        mq_topic *old = mq_topic_recyclable(play->engine, false);
        if (old != NULL)
            mq_topic_free(play->engine, old);
        skip(connection, MQ_REASON_QUOTA_EXCEEDED);
        return;
    }
    route(play->engine, topic, play->other, asked % 3);
    if (asked % 2)
        route(play->engine, topic, play->sender, asked % 3 | MQ_OPTION_RETAIN_AS_PUBLISHED);
    mq_authorize(play->engine, connection, topic, asked % 7 != 0);
}

static void answer(play *play)
{
    mq_event event;
    uint32_t ring = 0;
    while (mq_event_take(play->engine, UINT64_MAX, &ring, &event)) {
        mq_connection *connection = mq_slab_get(&play->engine->connections, event.handle);
        if (event.kind == MQ_EVENT_TOPIC && connection != NULL && connection->stop == MQ_STOP_PYTHON)
            answer_topic(play, connection, &event);
    }
    mq_events_resume(play->engine);
}

static void pull(play *play, mq_connection *connection)
{
    if (connection->stop == MQ_STOP_CLOSING)
        return;
    while (mq_fill_output(play->engine, connection) && connection->stop != MQ_STOP_CLOSING)
        connection->out.start = connection->out.end = 0;
    mq_bytes_free(play->engine, &connection->out);
    mq_fifo_leave(&connection->touched);
    if (connection->stop == MQ_STOP_OUT) {
        connection->stop = MQ_RUN;
        mq_connection_ready(play->engine, connection);
    }
}

static void settle(play *play)
{
    for (int i = 0; i < 64; i++) {
        play->engine->now_ms += 1;
        play->engine->now_ns += 1000000;
        play->engine->input_read_ms = play->engine->now_ms;
        mq_engine_step(play->engine);
        pull(play, play->sender);
        pull(play, play->other);
        if (mq_events_waiting(play->engine) == 0 && play->engine->ready.count == 0)
            return;
        answer(play);
    }
}

/* Only topics of the sender's name space are stored, and only a client of the same one receives them. */
static void check_tenants(const play *play, const mq_tenant *sender, const mq_tenant *other)
{
    for (uint32_t i = 0; i < play->engine->topics.created; i++) {
        const mq_topic *topic = mq_slab_at(&play->engine->topics, i);
        must(!(topic->item.generation & 1) || topic->retained == NULL ||
                 topic->tenant == (sender == NULL ? 0 : sender->number),
             "a retained message is in the name space of its publisher");
    }
    for (uint32_t i = MQ_OWNED_DELAYED; sender != NULL && i < MQ_OWNED; i++)
        must(sender->used[i] <= sender->max[i], "no tenant delays more messages than it may");
    must(sender == other || play->other->session == NULL || play->other->session->delivered == 0,
         "no message crosses");
}

/* Puts `count` bytes where they are wanted, with nothing readable behind them. */
static void feed(play *play, const uint8_t *bytes, uint32_t count)
{
    uint32_t capacity;
    mq_connection *sender = play->sender;
    uint8_t *to = mq_receive_buffer(play->engine, sender, &capacity);
    must(to != NULL, "there is memory");
    count = count < capacity ? count : capacity;
    uint8_t *receive = play->engine->receive, *receive_end = receive + MQ_CARRY_BYTES + MQ_READ_BYTES;
    bool shared = to >= receive && to < receive_end;
    memcpy(to, bytes, count);
    if (shared)
        ASAN_POISON_MEMORY_REGION(to + count, (size_t)(receive_end - (to + count)));
    mq_received(play->engine, sender, count);
    if (shared)
        ASAN_UNPOISON_MEMORY_REGION(receive, MQ_CARRY_BYTES + MQ_READ_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const mq_limits limits = {.connections_max = 4,
                                     .unfinished_max_bytes = UINT64_MAX,
                                     .connect_timeout_ms = 5000,
                                     .connect_max_bytes = 4096,
                                     .packet_max_bytes = 2048,
                                     .control_max_bytes = 2048,
                                     .qos_max = 2,
                                     .share_percent = 100,
                                     .topics_max = 16,
                                     .topics_max_bytes = 4096,
                                     .retained_max = 4,
                                     .receive_max = 8,
                                     .alias_max = 4,
                                     .retained_max_bytes = 4096,
                                     .queues_max_bytes = 1 << 20};
    static const uint64_t seed[2] = {1, 2};
    static const uint8_t versions[] = {4, 5, 3, 5};
    rb_writer writer;
    if (size < 2)
        return 0;
    memset(ring, 0, RB_HEADER_BYTES);
    must(rb_format(ring, CAPACITY, 1, 0, "fuzz-0", MADE_NS, 1) == RB_OK, "the ring is formatted");
    must(rb_format_cursors(cursors, ring) == RB_OK &&
             rb_writer_open(&writer, ring, sizeof ring, cursors, own) == RB_OK,
         "the ring has a writer");
    play play = {.engine = mq_engine_new(&limits, seed)};
    play.engine->now_ms = 1000;
    play.engine->now_ns = MADE_NS;
    play.ring = (uint16_t)mq_ring_add(play.engine, (mq_ring){.kind = MQ_RING_OWN, .writer = &writer});
    static const uint64_t quota[MQ_OWNED] = {[MQ_OWNED_DELAYED] = 3, [MQ_OWNED_DELAYED_BYTES] = 400};
    play.engine->delayed_counted = !(data[0] & 128);
    mq_tenant *sender = data[0] & 16 ? mq_tenant_set(play.engine, "a", 1, quota, 0) : NULL;
    const char *name = data[0] & 64 ? "a" : "b";
    mq_tenant *other = data[0] & 32 ? mq_tenant_set(play.engine, name, 1, quota, 0) : NULL;
    play.sender = client(&play, versions[data[0] & 3], data[0] & 4, 4, sender);
    play.other = client(&play, data[0] & 8 ? 5 : 4, true, 65535, other);
    const uint8_t *at = data + 2, *end = data + size;
    uint32_t piece = data[1] ? data[1] : 65536;
    while (at < end && play.sender->stop == MQ_RUN) {
        uint32_t count = (uint32_t)(end - at) < piece ? (uint32_t)(end - at) : piece;
        feed(&play, at, count);
        at += count;
        settle(&play);
    }
    check_tenants(&play, sender, other);
    mq_engine_free(play.engine);
    return 0;
}
