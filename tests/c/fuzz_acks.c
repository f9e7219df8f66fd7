/* SPDX-License-Identifier: Apache-2.0
 *
 * Acknowledgements: to clients that publish, where logs, sinks and memory fail; and from clients, of messages
 * that are in flight or never were, in several pieces.  For libFuzzer.
 *
 *   input   operations, four bytes each: which, of which client, and two arguments
 *
 * Four clients, two of them with kept sessions; three rings, whose acknowledgements wait for nothing, for the
 * log and for the sinks; a journal that is soon full.  After each operation: what waits is counted, has its
 * place in every list, and no client is paused without a cause.  At the end all go, and nothing may be left.
 * Received bytes end where memory may be read, so that AddressSanitizer sees one byte too many.
 */
#include <sanitizer/asan_interface.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mqtt/in/packets.h"
#include "failing_memory.h"
#include "fifos.h"
#include "must.h"

#define CAPACITY RB_CAPACITY_MIN_BYTES
#define MADE_NS 1700000000000000000u
#define CLIENTS 4
#define RINGS 3 /* their numbers are those of their gates: MQ_GATE_* */
#define RECEIVE_MAX 4
#define STEPS_MAX 8

static _Alignas(4096) uint8_t rings[RINGS + 1][RB_HEADER_BYTES + CAPACITY],
    cursors[RINGS + 1][RB_CURSORS_BYTES], own[RINGS + 1][RB_CURSORS_BYTES];

typedef struct client {
    mq_session *session;
    mq_connection *connection; /* NULL: away */
    uint8_t rest[32];          /* of a packet that was sent in part */
    uint32_t rest_count;
} client;

typedef struct world {
    mq_engine *engine;
    rb_writer writers[RINGS + 1]; /* the last one is the journal's */
    uint32_t rings[RINGS];
    uint64_t drained; /* offset */
    client clients[CLIENTS];
} world;

/* ---- clients ---- */

static void away(world *world, client *client, uint32_t cause)
{
    if (client->connection == NULL)
        return;
    mq_connection_close(world->engine, client->connection, cause);
    mq_connection_forget(world->engine, client->connection);
    client->connection = NULL;
    client->rest_count = 0;
}

static void attach(world *world, client *client, uint8_t version)
{
    if (client->connection != NULL || (client->connection = mq_connection_open(world->engine, -1, 0)) == NULL)
        return;
    mq_connection_settings settings = {.window = 4, .version = version, .trusted = true};
    mq_connection_attach(world->engine, client->connection, client->session, &settings);
}

static void session_new(world *world, client *client)
{
    client->session = mq_slab_take(&world->engine->sessions);
    must(client->session != NULL, "there is memory");
    client->session->queue_max = 10;
    client->session->kept = client->session->item.index & 1;
    for (uint8_t i = 0; i < RINGS; i++) { /* ring 0 at QoS 0, and so on */
        const uint8_t name[2] = {'t', (uint8_t)('0' + i)};
        mq_route_set(world->engine, mq_topic_find(world->engine, name, 2), client->session, i);
    }
}

static void session_end(world *world, client *client)
{
    away(world, client, MQ_CLOSE_SERVER);
    mq_session_clear(world->engine, client->session);
    mq_slab_give(&world->engine->sessions, &client->session->item);
    session_new(world, client);
}

static void feed_piece(world *world, const client *client, const uint8_t *bytes, uint32_t count)
{
    uint32_t capacity;
    if (client->connection == NULL || client->connection->stop != MQ_RUN ||
        client->connection->turn.fifo != NULL)
        return;
    uint8_t *to = mq_receive_buffer(world->engine, client->connection, &capacity);
    uint8_t *receive = world->engine->receive, *end = receive + MQ_CARRY_BYTES + MQ_READ_BYTES;
    if (to == NULL || capacity < count)
        return;
    memcpy(to, bytes, count);
    if (to >= receive && to < end)
        ASAN_POISON_MEMORY_REGION(to + count, (size_t)(end - (to + count)));
    mq_received(world->engine, client->connection, count);
    ASAN_UNPOISON_MEMORY_REGION(receive, MQ_CARRY_BYTES + MQ_READ_BYTES);
}

/* Send what is left of the packet before. */
static void feed_rest(world *world, client *client)
{
    uint32_t count = client->rest_count;
    client->rest_count = 0;
    if (count > 0)
        feed_piece(world, client, client->rest, count);
}

/* Send a packet: `now` bytes, and the rest before the next packet. */
static void feed(world *world, client *client, const uint8_t *bytes, uint32_t count, uint32_t now)
{
    feed_rest(world, client);
    now = now < count ? now : count;
    if (now > 0)
        feed_piece(world, client, bytes, now);
    memcpy(client->rest, bytes + now, count - now);
    client->rest_count = count - now;
}

/* PUBLISH to the topic of a ring: how % 4 is the ring or none, how / 4 % 4 the QoS. */
static void publish(world *world, client *client, uint8_t number, uint8_t how)
{
    uint8_t packet[32], at = 0, qos = how / 4 % 4, length = how / 16;
    bool is_v5 = client->connection != NULL && client->connection->version == 5;
    packet[at++] = (uint8_t)(0x30 | (qos < 3 ? qos : 0) << 1);
    packet[at++] = (uint8_t)(4 + (qos % 3 ? 2 : 0) + (is_v5 ? 1 : 0) + length);
    memcpy(packet + at, (const uint8_t[4]){0, 2, 't', (uint8_t)('0' + how % RINGS)}, 4);
    at += 4;
    if (qos % 3) {
        packet[at++] = 0;
        packet[at++] = (uint8_t)(number % 15 + 1);
    }
    if (is_v5)
        packet[at++] = 0;
    memset(packet + at, 'x', length);
    feed(world, client, packet, at + length, 32);
}

/* PUBACK, PUBREC, PUBREL or PUBCOMP: how % 4.  `number`: identifier, from 128 on of a message in flight;
 * `how` / 4 % 8: the form, and of how many bytes only the first is sent at once, and which are wrong. */
static void acknowledge(world *world, client *client, uint8_t number, uint8_t how)
{
    static const uint8_t reasons[] = {0x00, 0x10, 0x83, 0x92, 0x80, 0x97, 0x01, 0xff};
    const mq_session *session = client->session;
    uint64_t which = number & 0x80 ? session->sent_first + (number & 7) : number % 15u;
    uint16_t identifier = (uint16_t)(which % 65535 + 1);
    uint8_t form = how / 4 % 8, kind = (uint8_t)(4 + how % 4), length = form < 4 ? 2 : form - 1;
    uint8_t packet[16] = {(uint8_t)(kind << 4 | (kind == MQ_PUBREL ? 2 : 0)), length,
                          (uint8_t)(identifier >> 8), (uint8_t)identifier, reasons[number & 7], 0};
    if (form == 6) { /* a property: a reason string, or an unknown one */
        packet[1] = 8;
        memcpy(packet + 5, (const uint8_t[5]){4, number & 64 ? 0x26 : 0x1f, 0, 1, 'x'}, 5);
    } else if (form == 7) { /* shorter or longer than a packet can be */
        packet[0] |= number & 1;
        packet[1] = number & 7;
    }
    feed(world, client, packet, 2u + packet[1], how & 0x80 ? how / 32 % 4 + 1u : 16);
}

static void pull(world *world, const client *client)
{
    mq_connection *connection = client->connection;
    if (connection == NULL || connection->stop == MQ_STOP_CLOSING)
        return;
    mq_fifo_leave(&connection->touched);
    mq_fill_output(world->engine, connection);
    mq_bytes_free(world->engine, &connection->out);
    if (connection->stop == MQ_STOP_OUT) {
        connection->stop = MQ_RUN;
        mq_connection_ready(world->engine, connection);
    }
}

/* ---- logs and sinks ---- */

static void durable(world *world, uint32_t ring, uint8_t back)
{
    rb_writer *writer = &world->writers[ring];
    uint64_t to = back < writer->tail ? writer->tail - back : 0;
    if (to > atomic_load(&writer->header->durable))
        atomic_store(&writer->header->durable, to);
}

static void drained(world *world, uint8_t count)
{
    uint64_t end = world->writers[MQ_GATE_UPSTREAM].offset, to = world->drained + count;
    world->drained = to < end ? to : end;
    mq_upstream_progress(world->engine, world->rings[MQ_GATE_UPSTREAM], world->drained);
}

static void lost(world *world, uint8_t from, uint8_t count)
{
    uint64_t end = world->writers[MQ_GATE_UPSTREAM].offset, first = world->drained + from, to = first + count;
    mq_upstream_lost(world->engine, world->rings[MQ_GATE_UPSTREAM], first, to < end ? to : end);
}

static void snapshot(world *world)
{
    if (mq_journal_end(world->engine, false))
        mq_journal_snapshot_saved(world->engine, world->writers[RINGS].tail, CAPACITY / 4);
}

static void step(world *world, uint8_t ms)
{
    world->engine->now_ms += ms;
    mq_event event;
    uint32_t ring = 0;
    while (mq_event_take(world->engine, UINT64_MAX, &ring, &event))
        ;
    mq_events_resume(world->engine);
    mq_engine_step(world->engine);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        client *client = &world->clients[i];
        if (client->connection == NULL)
            continue;
        mq_fifo_leave(&client->connection->touched);
        if (client->connection->stop == MQ_STOP_CLOSING)
            away(world, client, MQ_CLOSE_RESET);
    }
}

static void play(world *world, const uint8_t *operation)
{
    client *client = &world->clients[operation[1] % CLIENTS];
    uint8_t a = operation[2], b = operation[3];
    fails_in = operation[1] & 0x80 ? 1 + (operation[1] >> 2 & 15) : 0;
    switch (operation[0] % 16) {
    case 0:
        attach(world, client, a & 1 ? 5 : 4);
        break;
    case 1:
        away(world, client, MQ_CLOSE_PEER);
        break;
    case 2:
        fails_in = 0;
        session_end(world, client);
        break;
    case 3:
    case 12:
        acknowledge(world, client, a, b);
        break;
    case 4:
        pull(world, client);
        break;
    case 5:
        durable(world, a % (RINGS + 1), b);
        break;
    case 6:
        drained(world, a % 8);
        break;
    case 7:
        lost(world, a % 8, b % 8);
        break;
    case 8:
        mq_refuse_publishers(world->engine, world->rings[a % RINGS], b & 1 ? MQ_REASON_QUOTA_EXCEEDED : 0);
        break;
    case 9:
        snapshot(world);
        break;
    case 10:
    case 11:
        step(world, a);
        break;
    default:
        publish(world, client, a, b);
    }
    fails_in = 0;
}

/* ---- what must hold ---- */

static uint32_t receipts_of(const mq_session *session)
{
    const mq_receipts *receipts = session->receipts;
    uint32_t marked = 0;
    if (receipts == NULL)
        return 0;
    must(receipts->session == session && *receipts->link == receipts, "receipts are in the list of all");
    must(receipts->count > 0 && receipts->count <= receipts->capacity,
         "receipts that are none have no memory");
    for (uint32_t i = 0; i < receipts->count; i++)
        marked += mq_received_has(session, receipts->at[i].identifier);
    must(marked == receipts->count, "a receipt is of an identifier in use");
    must(receipts->count <= 2 * RECEIVE_MAX, "receipts are bounded");
    return 1;
}

static void look(const world *world)
{
    uint64_t acks = 0;
    uint32_t sessions = 0, listed = 0;
    fifos_hold(world->engine);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        const mq_connection *connection = world->clients[i].connection;
        sessions += receipts_of(world->clients[i].session);
        turn_holds(world->engine, connection);
        acks += connection == NULL ? 0 : connection->acks_count;
        if (connection == NULL || connection->stop == MQ_STOP_CLOSING)
            continue;
        must(connection->session == world->clients[i].session, "an open connection has its session");
        must(connection->acks_count == 0 || connection->ack_wait.fifo != NULL,
             "what waits is released some time");
        const mq_receipts *receipts = connection->session->receipts;
        must(connection->stop != MQ_STOP_ACKS || connection->ack_wait.fifo != NULL ||
                 (receipts != NULL && receipts->count >= mq_acks_max(world->engine, connection)),
             "a client is paused for a cause");
    }
    for (uint32_t i = 0; i < RINGS; i++) {
        const mq_ring *ring = world->engine->rings[world->rings[i]];
        uint64_t refusal_ms = ring->ack_gate.refused_since_ms + ring->queue_timeout_ms;
        must(ring->ack_gate.refusal == 0 || refusal_ms <= world->engine->now_ms ||
                 world->engine->refusal_due_ms <= refusal_ms,
             "the loop wakes up when a ring begins to refuse");
    }
    for (const mq_receipts *it = world->engine->receipts; it != NULL; it = it->next)
        listed++;
    must(sessions == listed, "all receipts belong to a session");
    must(acks == world->engine->counters.acks_waiting, "what waits is counted");
}

/* Sinks and logs have all, and there is memory and room: each client that is here gets what it waits for. */
static void all_arrive(world *world)
{
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        for (uint32_t ring = 0; ring < RINGS; ring++) {
            mq_refuse_publishers(world->engine, world->rings[ring], 0);
            durable(world, ring, 0);
        }
        durable(world, RINGS, 0);
        drained(world, 255);
        drained(world, 255);
        snapshot(world);
        step(world, 255);
        for (uint32_t j = 0; j < CLIENTS; j++)
            pull(world, &world->clients[j]);
        look(world);
    }
    must(world->engine->receipts == NULL && world->engine->counters.acks_waiting == 0, "nothing waits");
    for (uint32_t i = 0; i < CLIENTS; i++) {
        const mq_connection *connection = world->clients[i].connection;
        uint32_t used = 0;
        for (uint16_t identifier = 1; connection != NULL && identifier < 16; identifier++)
            used += mq_received_has(connection->session, identifier);
        must(connection == NULL || connection->stop == MQ_RUN, "no client is paused");
        must(connection == NULL || connection->unfinished <= used, "an exchange of QoS 1 has an end");
    }
}

static void ring_open(world *world, uint32_t ring)
{
    memset(rings[ring], 0, RB_HEADER_BYTES);
    must(rb_format(rings[ring], CAPACITY, 1, 0, "fuzz", MADE_NS, 1) == RB_OK &&
             rb_format_cursors(cursors[ring], rings[ring]) == RB_OK &&
             rb_writer_open(&world->writers[ring], rings[ring], sizeof rings[ring], cursors[ring],
                            own[ring]) == RB_OK,
         "the ring has a writer");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const mq_limits limits = {.connections_max = 100,
                                     .unfinished_max_bytes = UINT64_MAX,
                                     .connect_max_bytes = 4096,
                                     .packet_max_bytes = 4096,
                                     .control_max_bytes = 4096,
                                     .qos_max = 2,
                                     .share_percent = 100,
                                     .topics_max = 16,
                                     .topics_max_bytes = 1000,
                                     .retained_max = 4,
                                     .receive_max = RECEIVE_MAX,
                                     .queues_max_bytes = 4096};
    static const uint64_t seed[2] = {1, 2};
    world world = {.engine = mq_engine_new(&limits, seed)};
    world.engine->now_ms = 1000;
    world.engine->now_ns = MADE_NS;
    for (uint32_t i = 0; i < RINGS; i++) {
        ring_open(&world, i);
        mq_ring ring = {.kind = MQ_RING_OWN,
                        .writer = &world.writers[i],
                        .ack_gate = {.event = (uint8_t)i},
                        .queue_timeout_ms = 100};
        const char name[2] = {'t', (char)('0' + i)};
        world.rings[i] = (uint32_t)mq_ring_add(world.engine, ring);
        must(mq_topic_add(world.engine, name, 2, (uint16_t)world.rings[i], false) != NULL,
             "the ring has a topic");
    }
    ring_open(&world, RINGS);
    mq_journal_open(world.engine, &world.writers[RINGS], 0, true, 0);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        session_new(&world, &world.clients[i]);
        attach(&world, &world.clients[i], 4 + i % 2);
    }
    for (; size >= 4; data += 4, size -= 4) {
        play(&world, data);
        look(&world);
    }
    all_arrive(&world);
    for (uint32_t i = 0; i < CLIENTS; i++)
        session_end(&world, &world.clients[i]);
    must(world.engine->receipts == NULL && world.engine->counters.acks_waiting == 0, "nothing is left");
    mq_engine_free(world.engine);
    return 0;
}
