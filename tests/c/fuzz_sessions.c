/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients that share state: sessions that come and go, groups, retained messages, rings
 * that lap, a log.  For libFuzzer; fuzz_mqtt.c is about their bytes.
 *
 *   input   operations, four bytes each: which, of which client, and two arguments
 *
 * Four clients, two rings (one whose records the log has, once overwritten), six topics, two groups, a spill
 * file that is soon full; two of the clients have sessions that are kept, which must lose nothing by that.
 * After each operation: the counts of sessions equal their content, and no client with data to send is
 * forgotten. At the end all go, and nothing may be left: no bytes of queues, copies, retained messages, no
 * grant.
 */
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "mqtt/mqtt.h"
#include "fifos.h"
#include "must.h"

#define CAPACITY RB_CAPACITY_MIN_BYTES
#define MADE_NS 1700000000000000000u
#define CLIENTS 4
#define RINGS 2
#define GROUPS 2
#define TOPICS 6
#define LOG_BYTES (64u * CAPACITY)
#define LOGGED 1 /* the ring with a log */

static _Alignas(4096) uint8_t rings[RINGS][RB_HEADER_BYTES + CAPACITY], cursors[RINGS][RB_CURSORS_BYTES],
    own[RINGS][RB_CURSORS_BYTES];
static uint8_t log_bytes[LOG_BYTES];

typedef struct client {
    mq_session *session;
    mq_connection *connection; /* NULL: away */
} client;

typedef struct world {
    mq_engine *engine;
    rb_writer writers[RINGS];
    uint16_t rings[RINGS];
    client clients[CLIENTS];
    mq_session *groups[GROUPS];
    uint64_t logged; /* position up to which the log has the ring */
} world;

/* ---- what Python would do ---- */

static mq_session *session_new(world *world)
{
    mq_session *session = mq_slab_take(&world->engine->sessions);
    must(session != NULL, "there is memory");
    session->queue_max = 40;
    session->kept = session->item.index & 1;
    return session;
}

static void away(world *world, client *client, uint32_t cause)
{
    if (client->connection == NULL)
        return;
    mq_connection_close(world->engine, client->connection, cause);
    mq_connection_forget(world->engine, client->connection);
    client->connection = NULL;
}

static void attach(world *world, client *client, uint8_t version, uint32_t window)
{
    if (client->connection != NULL)
        return;
    client->connection = mq_connection_open(world->engine, -1, 0);
    must(client->connection != NULL, "there is memory");
    mq_connection_settings settings = {.window = window + 1,
                                       .send_max_bytes = window & 8 ? 2000 : 0,
                                       .alias_max = version == 5 ? window & 3 : 0,
                                       .version = version,
                                       .trusted = true};
    mq_connection_attach(world->engine, client->connection, client->session, &settings);
}

static mq_topic *topic_of(world *world, uint32_t number)
{
    char name[4] = {'t', '/', (char)('0' + number % TOPICS), 0};
    mq_topic *topic = mq_topic_find(world->engine, name, 3);
    if (topic == NULL)
        topic = mq_topic_add(world->engine, name, 3, world->rings[number % RINGS], false);
    must(topic != NULL, "there is memory");
    return topic;
}

/* The options of `choice`, with a grant for every other: it counts for the caller. */
static uint32_t tag_of(world *world, mq_session *group, uint8_t choice)
{
    const uint8_t identifier[2] = {0x0b, (uint8_t)(choice >> 4 | 1)};
    uint32_t options = choice % 3 | (choice & 8 ? MQ_OPTION_RETAIN_AS_PUBLISHED : 0), grant = 0;
    if (group != NULL || choice & 4)
        grant = mq_subscription_ids_take(world->engine, group == NULL ? 0 : mq_handle(&group->item),
                                         identifier, 2);
    return options | grant << MQ_OPTION_IDS_SHIFT;
}

static void tag_done(world *world, uint32_t options)
{
    if (options >> MQ_OPTION_IDS_SHIFT)
        mq_subscription_ids_drop(world->engine, options >> MQ_OPTION_IDS_SHIFT);
}

static void subscribe(world *world, client *client, uint8_t number, uint8_t choice)
{
    uint32_t options = tag_of(world, NULL, choice);
    mq_topic *topic = topic_of(world, number);
    mq_route_set(world->engine, topic, client->session, options | (choice & 64 ? MQ_OPTION_NO_LOCAL : 0));
    if ((choice & 192) == 192)
        mq_route_add(world->engine, topic, client->session, options | MQ_OPTION_OWN_ONLY);
    mq_retained_scope scope = {.filter = number & 8 ? "t/+" : (const char *)topic->name, .filter_length = 3};
    if (choice & 16)
        mq_retained_delivery_begin(world->engine, client->session, options, &scope);
    tag_done(world, options);
}

static void unsubscribe(world *world, client *client, uint8_t number)
{
    mq_topic *topic = topic_of(world, number);
    mq_route_drop(world->engine, topic, client->session);
    mq_retained_delivery_end(world->engine, client->session, number & 8 ? "t/+" : (const char *)topic->name,
                             3);
}

/* Group n shares topics n and n + 2. */
static void join(world *world, client *client, uint8_t number, uint8_t choice)
{
    mq_session **group = &world->groups[number % GROUPS];
    if (*group == NULL) {
        must((*group = mq_share_open(world->engine, 20, number & 4)) != NULL, "there is memory");
        for (uint32_t i = 0; i < 2; i++)
            mq_route_set(world->engine, topic_of(world, number % GROUPS + 2 * i), *group,
                         2 | MQ_OPTION_SHARED | MQ_OPTION_RETAIN_AS_PUBLISHED);
    }
    uint32_t options = tag_of(world, *group, choice);
    must(mq_share_join(world->engine, *group, client->session, options), "there is memory");
    tag_done(world, options);
}

static void leave(world *world, client *client, uint8_t number)
{
    mq_session **group = &world->groups[number % GROUPS];
    if (*group == NULL)
        return;
    mq_share_leave(world->engine, *group, client->session);
    for (uint32_t i = 0; i < CLIENTS; i++)
        for (uint32_t at = 0; at < world->clients[i].session->shares.count; at++)
            if (world->clients[i].session->shares.at[at] == mq_handle(&(*group)->item))
                return;
    mq_session_clear(world->engine, *group);
    mq_slab_give(&world->engine->sessions, &(*group)->item);
    *group = NULL;
}

static void session_end(world *world, client *client)
{
    away(world, client, MQ_CLOSE_SERVER);
    for (uint8_t i = 0; i < GROUPS; i++)
        leave(world, client, i);
    mq_session_clear(world->engine, client->session);
    mq_slab_give(&world->engine->sessions, &client->session->item);
    client->session = session_new(world);
}

/* ---- what clients send ---- */

static void feed(world *world, const client *client, const uint8_t *bytes, uint32_t count)
{
    uint32_t capacity;
    if (client->connection == NULL || client->connection->stop != MQ_RUN ||
        client->connection->turn.fifo != NULL)
        return;
    uint8_t *to = mq_receive_buffer(world->engine, client->connection, &capacity);
    must(to != NULL && capacity >= count, "there is memory");
    memcpy(to, bytes, count);
    mq_received(world->engine, client->connection, count);
}

/* The log takes what the ring has got. */
static void log_follow(world *world)
{
    const rb_writer *writer = &world->writers[LOGGED];
    for (; world->logged < writer->tail && world->logged < LOG_BYTES; world->logged += RB_RECORD_ALIGN)
        memcpy(log_bytes + world->logged, writer->data + (world->logged & (CAPACITY - 1)), RB_RECORD_ALIGN);
}

/* PUBLISH: the second argument is QoS, RETAIN, an expiry interval, and how long it is. */
static void publish(world *world, const client *client, uint8_t number, uint8_t how)
{
    static uint8_t packet[8192];
    bool is_v5 = client->connection != NULL && client->connection->version == 5;
    uint32_t qos = how % 3, length = (how >> 4) * 255u, at = 3;
    if (world->writers[LOGGED].tail + 8192 > LOG_BYTES)
        return;
    const mq_topic *topic = topic_of(world, number);
    packet[0] = (uint8_t)(0x30 | qos << 1 | (how & 4 ? 1 : 0));
    packet[at++] = 0;
    packet[at++] = 3;
    memcpy(packet + at, topic->name, 3);
    at += 3;
    if (qos) {
        packet[at++] = 0;
        packet[at++] = (uint8_t)(number % 16 + 1);
    }
    if (is_v5) {
        const uint8_t expiry[6] = {5, 2, 0, 0, 0, (uint8_t)(how >> 5)};
        memcpy(packet + at, how & 8 ? expiry : (const uint8_t[6]){0}, 6);
        at += how & 8 ? 6 : 1;
    }
    memset(packet + at, how, length);
    length += at - 3;
    packet[1] = (uint8_t)(length | 0x80);
    packet[2] = (uint8_t)(length >> 7);
    if (length >> 7 == 0) { /* the shortest form */
        packet[1] = (uint8_t)length;
        memmove(packet + 2, packet + 3, length);
        feed(world, client, packet, 2 + length);
    } else {
        feed(world, client, packet, 3 + length);
    }
    log_follow(world);
}

/* An acknowledgement: of something in flight, or of what never was. */
static void acknowledge(world *world, const client *client, uint8_t kind, uint8_t number)
{
    const mq_session *session = client->session;
    uint64_t which = number & 0x80 ? number & 0x1f : session->sent_first + (number & 7);
    uint16_t identifier = (uint16_t)(which % 65535 + 1);
    bool fails = kind & 4 && client->connection != NULL && client->connection->version == 5 && kind % 4 < 2;
    uint8_t first = (uint8_t)((4 + kind % 4) << 4 | (kind % 4 == 2 ? 2 : 0));
    uint8_t bytes[5] = {first, fails ? 3 : 2, (uint8_t)(identifier >> 8), (uint8_t)identifier, 0x83};
    feed(world, client, bytes, fails ? 5 : 4);
}

/* ---- what the loop does ---- */

static void pull(world *world, const client *client, uint32_t most)
{
    mq_connection *connection = client->connection;
    if (connection == NULL || connection->stop == MQ_STOP_CLOSING)
        return;
    bool more = true;
    mq_fifo_leave(&connection->touched);
    for (uint32_t i = 0; more && i < most && connection->stop != MQ_STOP_CLOSING; i++) {
        more = mq_fill_output(world->engine, connection);
        connection->out.start = connection->out.end = 0;
    }
    mq_bytes_free(world->engine, &connection->out);
    if (connection->stop == MQ_STOP_OUT) {
        connection->stop = MQ_RUN;
        mq_connection_ready(world->engine, connection);
    }
    if (more)
        mq_connection_touch(world->engine, connection);
}

static void step(world *world, uint64_t ms, int64_t ns)
{
    world->engine->now_ms += ms;
    world->engine->now_ns += (uint64_t)ns;
    mq_event event;
    uint32_t ring = 0;
    while (mq_event_take(world->engine, UINT64_MAX, &ring, &event))
        ;
    mq_events_resume(world->engine);
    world->engine->input_read_ms = world->engine->now_ms;
    mq_engine_step(world->engine);
    for (uint32_t i = 0; i < CLIENTS; i++)
        if (world->clients[i].connection != NULL && world->clients[i].connection->stop == MQ_STOP_CLOSING)
            away(world, &world->clients[i], MQ_CLOSE_RESET);
}

/* Give a session a piece of the log that it waits for, or report that the log has removed it. */
static void backfill(world *world, const client *client, uint8_t how)
{
    uint64_t where, wanted;
    if (!mq_next_log_position(world->engine, client->session, &where)) {
        mq_resume_delivery(world->engine, client->session);
        return;
    }
    must(mq_where_ring(where) == world->rings[LOGGED],
         "only a logged ring has records that are only in the log");
    wanted = mq_where_position(where);
    uint64_t end = (wanted & ~(uint64_t)(CAPACITY - 1)) + CAPACITY, length = (how | 1) * 256u;
    end = end < world->logged ? end : world->logged;
    length = wanted + length < end ? length : end - wanted;
    if (how & 1)
        mq_restore_records(world->engine, client->session, where, wanted, log_bytes + wanted, length);
    else
        mq_restore_records(world->engine, client->session, where, end, log_bytes + end, 0);
    mq_resume_delivery(world->engine, client->session);
}

static void purge(world *world, mq_session *session, uint8_t which)
{
    uint8_t *bits = calloc(1, world->engine->topics.created / 8 + 1);
    must(bits != NULL, "there is memory");
    bits[0] = which;
    mq_retained_deliveries_list(world->engine, session);
    mq_purge(world->engine, session, bits);
    mq_retained_deliveries_purge(session, bits);
    free(bits);
}

static void recycle(world *world, uint8_t number)
{
    mq_topic *topic = topic_of(world, number);
    if (topic->retained == NULL)
        mq_topic_free(world->engine, topic);
    for (uint8_t i = 0; i < GROUPS; i++) /* it would be routed again when it is seen again */
        if (world->groups[i] != NULL && (number % TOPICS == i || number % TOPICS == i + 2))
            mq_route_set(world->engine, topic_of(world, number), world->groups[i],
                         2 | MQ_OPTION_SHARED | MQ_OPTION_RETAIN_AS_PUBLISHED);
}

static void play(world *world, const uint8_t *operation)
{
    client *client = &world->clients[operation[1] % CLIENTS];
    uint8_t a = operation[2], b = operation[3];
    switch (operation[0] % 16) {
    case 0:
        attach(world, client, a % 3 + 3, b & 15);
        break;
    case 1:
        away(world, client, MQ_CLOSE_PEER);
        break;
    case 2:
        session_end(world, client);
        break;
    case 3:
        subscribe(world, client, a, b);
        break;
    case 4:
        unsubscribe(world, client, a);
        break;
    case 5:
        join(world, client, a, b);
        break;
    case 6:
        leave(world, client, a);
        break;
    case 7:
        acknowledge(world, client, a, b);
        break;
    case 8:
        pull(world, client, a % 4 + 1);
        break;
    case 9:
        step(world, a, b * (b & 1 ? INT64_C(100000000) : INT64_C(-10000000)));
        break;
    case 10:
        backfill(world, client, b);
        break;
    case 11:
        purge(world, a & 1 && world->groups[0] ? world->groups[0] : client->session, b);
        break;
    case 12:
        recycle(world, a);
        break;
    case 13: /* once around a ring, nearly */
        for (uint8_t i = 0; i < 15; i++)
            publish(world, client, a, (uint8_t)(b | 0xf0));
        break;
    default: /* what happens most */
        publish(world, client, a, b);
    }
}

/* ---- what must hold ---- */

/* Compare the counts of a session with its in-flight window and queue. */
static void count(const mq_session *session)
{
    uint32_t in_flight = 0, unsent = 0, queued = 0;
    mq_walk walk = {0};
    for (uint64_t n = session->sent_first; n < session->sent_next; n++) {
        const mq_entry *entry = &session->sent[n & (session->sent_capacity - 1)];
        bool is_open = entry->where != MQ_NOWHERE || entry->options & MQ_OPTION_RELEASED;
        must(is_open || n > session->sent_first, "a window begins with what is in flight");
        in_flight += is_open;
        unsent += is_open && n >= session->resend;
    }
    while (mq_queue_next(session, &walk))
        queued++;
    must(in_flight == session->in_flight, "what is in flight is counted");
    must(unsent == session->unsent, "what is to be sent again is counted");
    must(queued == session->queue_count && queued <= session->queue_max,
         "what waits is counted, and bounded");
    must(session->group == NULL || session->in_flight == 0, "nothing is in flight to a group");
}

static bool has_room(const mq_session *session)
{
    uint64_t span = session->sent_next - session->sent_first;
    return session->in_flight < session->window && span < 4ull * session->window &&
           session->resend == session->sent_next;
}

/* A client that was served and is not listed has nothing that it could be sent. */
static void nobody_is_forgotten(const world *world)
{
    for (uint32_t i = 0; i < CLIENTS; i++) {
        const client *client = &world->clients[i];
        const mq_session *session = client->session;
        if (client->connection == NULL || client->connection->touched.fifo != NULL ||
            session->waits_for_log || client->connection->stop == MQ_STOP_CLOSING)
            continue;
        if (!has_room(session))
            continue;
        must(session->queue_count == 0, "what waits for who could take it is sent");
        must(session->retained_deliveries == NULL, "what is retained for who could take it is sent");
        for (uint32_t at = 0; at < session->shares.count; at++) {
            const mq_session *queue = mq_slab_get(&world->engine->sessions, session->shares.at[at]);
            must(queue != NULL, "a member's group is there");
            must(queue->queue_count == 0 &&
                     (queue->group->returned == NULL || queue->group->returned->queue_count == 0),
                 "what waits for a group goes to who has room");
        }
    }
}

static void look(const world *world)
{
    fifos_hold(world->engine);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        count(world->clients[i].session);
        turn_holds(world->engine, world->clients[i].connection);
    }
    for (uint32_t i = 0; i < GROUPS; i++)
        if (world->groups[i] != NULL) {
            count(world->groups[i]);
            if (world->groups[i]->group->returned != NULL)
                count(world->groups[i]->group->returned);
        }
    nobody_is_forgotten(world);
}

static void all_go(world *world)
{
    mq_engine *engine = world->engine;
    for (uint32_t i = 0; i < CLIENTS; i++)
        session_end(world, &world->clients[i]);
    must(engine->counters.queues_bytes == 0, "queues that are gone have no memory");
    must(engine->counters.spilled_bytes == 0 && engine->counters.spilled_records == 0, "nor have copies");
    must(engine->share_queues == 0 && engine->connections.live == 0, "groups and connections are gone");
    must(engine->spill.live == 0, "and none is needed in the file");
    uint64_t retained = 0, bytes = 0;
    for (uint32_t i = 0; i < engine->topics.created; i++) {
        const mq_topic *topic = mq_slab_at(&engine->topics, i);
        bool retains = topic->item.generation & 1 && topic->retained != NULL;
        retained += retains;
        bytes += retains ? topic->retained->bytes : 0;
    }
    must(engine->counters.retained == retained && engine->counters.retained_bytes == bytes,
         "what is retained is counted");
    for (uint32_t i = 0; i < TOPICS; i++)
        mq_topic_free(engine, topic_of(world, i));
    must(engine->subscription_ids.live == 0, "nobody names a grant");
    must(engine->counters.retained_bytes == 0 && engine->counters.acks_waiting == 0,
         "nothing is retained, and no acknowledgement waits");
}

/* The longest file from now on; RLIM_INFINITY: as long as at the start. */
static void file_limit_set(rlim_t bytes)
{
    struct rlimit limit;
    must(getrlimit(RLIMIT_FSIZE, &limit) == 0, "there is a limit");
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    must(setrlimit(RLIMIT_FSIZE, &limit) == 0, "the limit may be changed");
}

static void spill_open(mq_engine *engine)
{
    static const uint32_t known[] = {1};
    signal(SIGXFSZ, SIG_IGN); /* as Python does; the fuzzer has a handler of its own */
    must(mq_spill_open(engine, memfd_create("fuzz", MFD_CLOEXEC), known, 1) == MQ_SPILL_NEW,
         "there is a file");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const mq_limits limits = {.connections_max = 100,
                                     .unfinished_max_bytes = UINT64_MAX,
                                     .connect_max_bytes = 4096,
                                     .packet_max_bytes = 8192,
                                     .control_max_bytes = 8192,
                                     .qos_max = 2,
                                     .share_percent = 100,
                                     .topics_max = 16,
                                     .topics_max_bytes = 1000,
                                     .retained_max = 4,
                                     .receive_max = 8,
                                     .alias_max = 4,
                                     .retained_max_bytes = 12000,
                                     .queues_max_bytes = 4096,
                                     .spill_max_bytes = 300000};
    static const uint64_t seed[2] = {1, 2};
    world world = {.engine = mq_engine_new(&limits, seed)};
    world.engine->now_ms = 1000;
    world.engine->now_ns = MADE_NS;
    for (uint32_t i = 0; i < RINGS; i++) {
        memset(rings[i], 0, RB_HEADER_BYTES);
        must(rb_format(rings[i], CAPACITY, 1, 0, "fuzz", MADE_NS, 1) == RB_OK &&
                 rb_format_cursors(cursors[i], rings[i]) == RB_OK &&
                 rb_writer_open(&world.writers[i], rings[i], sizeof rings[i], cursors[i], own[i]) == RB_OK,
             "the ring has a writer");
        mq_ring ring = {.kind = MQ_RING_OWN,
                        .writer = &world.writers[i],
                        .logged_to = i == LOGGED ? UINT64_MAX : 0,
                        .ring_name = "fuzz",
                        .ring_name_length = 4,
                        .epoch = i + 1};
        world.rings[i] = (uint16_t)mq_ring_add(world.engine, ring);
    }
    /* Room for the header and two units: a copy more is refused, as by a full file system.  Not longer than
     * this run, because the fuzzer writes files too. */
    file_limit_set(3 * MQ_UNIT_BYTES);
    spill_open(world.engine);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        world.clients[i].session = session_new(&world);
        attach(&world, &world.clients[i], 4 + i % 2, i);
    }
    for (; size >= 4; data += 4, size -= 4) {
        play(&world, data);
        look(&world);
    }
    all_go(&world);
    mq_engine_free(world.engine);
    file_limit_set(RLIM_INFINITY);
    return 0;
}
