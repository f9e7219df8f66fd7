/* SPDX-License-Identifier: Apache-2.0
 *
 * Event loop: receives, sends, closes, and sleeps in between.  Only this file, accept.c, linger.c,
 * transport/, spill_file.c and watchdog.c make system calls.
 *
 * One round: work without sockets (mq_engine_step), send, wait, then receive from ready sockets.
 *
 *   - The loop never sleeps while work is queued: the wait is 0 while a list of the engine is not empty.
 *   - Every connection gets its turn.  Sockets are checked in every round, even while one client has events
 *     for Python again and again.  A connection gets one read of MQ_READ_BYTES and is sent MQ_FLUSH_BYTES in
 *     its turn.  All connections together are limited to READ_ROUND_BYTES and FLUSH_ROUND_BYTES per round.
 *     They share MQ_ROUND_WORK too: input may cost more than its bytes show, for example new topics.
 *     Less input is parsed until every connection was sent output, because queues would grow otherwise.
 *     epoll is level-triggered and reports ready sockets in turn.
 *   - Changes of the epoll interest are rare.  EPOLLOUT is set only while a socket's buffer is full.  EPOLLIN
 *     is removed only from a paused connection that has input.
 *   - Handshakes do not delay others.  A connection is in an epoll of its own until its layers are open
 *     (transport/layer.h).  A round serves the ready ones for OPENING_NS, after all other input was read and
 *     its output was sent: so a message waits for the end of one step at most.
 *
 * Two eventfds: `wake` is for C (a sync is done, a producer ring has records) and needs no Python; `call`
 * makes the poll return to Python.
 */
#include "mqtt/event_loop.h"
#include "base/clock.h"
#include "mqtt/peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define BATCH 256 /* sockets served between two waits */
/* Bytes appended before subscribers are served, while the records are in the cache. */
#define FLUSH_AFTER_BYTES (256u * 1024)
#define FLUSH_ROUND_BYTES (2u << 20) /* sent to all connections before sockets are checked: about 2 ms */
#define FLUSH_MIN_BYTES (16u * 1024) /* smallest part of a connection */
#define READ_ROUND_BYTES (2u << 20)  /* received from all connections per round: about 2 ms */
#define FLUSH_COST_BYTES 4096u       /* extra cost of a connection's turn */
#define OUT_CHUNK_MIN 4096u
#define DRAIN_READS 16
#define OPENING_NS 100000 /* for handshakes in a round; the last step that began may take a millisecond */

/* Below 2^32, so never a connection's handle, whose generation is odd. */
enum { TAG_WAKE = MQ_LISTENERS_MAX, TAG_CALL, TAG_OPENING };

void mq_clock_read(mq_engine *engine)
{
    mq_clock_set(engine, (uint64_t)rb_now_ns(), (uint64_t)rb_clock_ns(CLOCK_REALTIME));
}

int mq_loop_set_interest(int epoll, int operation, int fd, uint32_t interest, uint64_t tag)
{
    struct epoll_event event = {.events = interest, .data.u64 = tag};
    return epoll_ctl(epoll, operation, fd, &event);
}

static int epoll_change(const mq_loop *loop, int operation, const mq_connection *connection,
                        uint32_t interest)
{
    int epoll = connection->opening ? loop->opening : loop->epoll;
    return mq_loop_set_interest(epoll, operation, connection->fd, interest, mq_handle(&connection->item));
}

static void interest_set(mq_loop *loop, mq_connection *connection, uint32_t interest)
{
    if (connection->interest == interest)
        return;
    connection->interest = interest;
    epoll_change(loop, EPOLL_CTL_MOD, connection, interest);
}

/* The input of a client that has closed its socket may hold a DISCONNECT, which cancels its will
 * [MQTT-3.14.4-3]: only the output ends here, and receive() closes the connection behind the last byte. */
static void send_failed(mq_engine *engine, mq_connection *connection, int error)
{
    connection->blocked = true;
    if (error != EPIPE && error != ECONNRESET)
        mq_connection_close(engine, connection, MQ_CLOSE_RESET);
}

/* ---- layers ---- */

static void leave_opening(mq_loop *loop, mq_connection *connection)
{
    epoll_change(loop, EPOLL_CTL_DEL, connection, 0);
    connection->opening = false;
    if (epoll_change(loop, EPOLL_CTL_ADD, connection, connection->interest) != 0)
        mq_connection_close(loop->engine, connection, MQ_CLOSE_MEMORY);
}

void mq_layers_used(mq_loop *loop, mq_connection *connection)
{
    const mq_layer *layer = connection->layer;
    if (connection->opening && (layer == NULL || layer->is_open))
        leave_opening(loop, connection);
    if (layer == NULL)
        return;
    if (layer->wants_write) {
        connection->blocked = true;
        interest_set(loop, connection, connection->interest | EPOLLOUT);
    }
    if (layer->pending && connection->socket.fifo == NULL)
        mq_fifo_add(&loop->pending, &connection->socket);
}

/* True if the layers have sent what they hold. */
static bool layers_flush(mq_loop *loop, mq_connection *connection)
{
    mq_layer *layer = connection->layer;
    if (layer == NULL || !layer->wants_write)
        return true;
    if (layer->calls->flush(layer, connection->fd) == 0) {
        mq_layers_used(loop, connection);
        return !layer->wants_write;
    }
    if (errno != EAGAIN)
        send_failed(loop->engine, connection, errno);
    return false;
}

/* ---- sending ---- */

/* Send the output.  False: part of it must wait for the barrier, the socket's buffer is full, or the socket
 * is closed. */
static bool send_out(mq_loop *loop, mq_connection *connection)
{
    mq_bytes *out = &connection->out;
    ssize_t sent;
    if (!mq_journal_written(loop->engine)) {
        mq_connection_touch(loop->engine, connection);
        return false;
    }
    uint32_t length = mq_sendable_bytes(loop->engine, connection);
    if (length == 0)
        return false;
    do
        sent = mq_layer_write(connection->layer, connection->fd, out->at + out->start, length);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && errno != EAGAIN) {
        send_failed(loop->engine, connection, errno);
        return false;
    }
    sent = sent < 0 ? 0 : sent;
    mq_layers_used(loop, connection);
    loop->engine->counters.bytes_out += (uint64_t)sent;
    out->start += (uint32_t)sent;
    mq_output_sent(connection, (uint32_t)sent);
    if (sent == length && out->start < out->end)
        return false;
    if (out->start == out->end) {
        out->start = out->end = 0;
        if (connection->out_chunk < MQ_BLOCK_BYTES)
            connection->out_chunk *= 2;
        return !connection->blocked;
    }
    if (connection->out_chunk > OUT_CHUNK_MIN)
        connection->out_chunk /= 2; /* a slow reader gets less memory */
    connection->blocked = true;
    mq_bytes_shrink(loop->engine, out);
    interest_set(loop, connection, connection->interest | EPOLLOUT);
    return false;
}

/* Send up to `limit_bytes` bytes, plus the rest of a block. */
static void serve_output(mq_loop *loop, mq_connection *connection, uint64_t limit_bytes)
{
    mq_engine *engine = loop->engine;
    uint64_t until = engine->counters.bytes_out + limit_bytes;
    bool more = true;
    if (connection->fd < 0 || connection->blocked || connection->stop == MQ_STOP_CLOSING)
        return;
    while (more && engine->counters.bytes_out < until) {
        more = mq_fill_output(engine, connection);
        if (connection->out.end == connection->out.start)
            break;
        if (!send_out(loop, connection))
            return;
    }
    mq_bytes_free(engine, &connection->out);
    if (connection->stop == MQ_STOP_OUT) {
        connection->stop = MQ_RUN;
        mq_connection_ready(engine, connection);
    }
    if (more)
        mq_connection_touch(engine, connection);
}

/* Send up to FLUSH_ROUND_BYTES to all touched connections; the rest is sent after the sockets are served. */
static void flush(mq_loop *loop)
{
    mq_engine *engine = loop->engine;
    uint32_t left = engine->touched.count;
    uint64_t sent = 0, share = FLUSH_ROUND_BYTES / (left > 0 ? left : 1);
    share = share < FLUSH_MIN_BYTES ? FLUSH_MIN_BYTES : share < MQ_FLUSH_BYTES ? share : MQ_FLUSH_BYTES;
    mq_announce_ends(engine);
    engine->appended_bytes = 0;
    mq_link *link;
    for (; left > 0 && sent < FLUSH_ROUND_BYTES && (link = mq_fifo_take(&engine->touched)) != NULL; left--) {
        uint64_t before = engine->counters.bytes_out;
        serve_output(loop, MQ_LINKED(link, mq_connection, touched), share);
        sent += engine->counters.bytes_out - before + FLUSH_COST_BYTES;
    }
    engine->lags = left > 0;
    if (engine->producers_moved)
        mq_producers_store_progress(engine);
}

/* ---- closing ---- */

/* Close a socket.  Closing with unread input resets the connection and discards output that the peer has not
 * read yet.  Input is therefore read first, unless its end was reached. */
static void socket_close(mq_engine *engine, int fd, uint32_t cause)
{
    for (int i = 0; i < DRAIN_READS && cause != MQ_CLOSE_PEER; i++)
        if (recv(fd, engine->receive, MQ_READ_BYTES, MSG_DONTWAIT) <= 0)
            break;
    close(fd);
}

/* True if the peer may still send, in answer to the end of the layer. */
static bool may_linger(const mq_connection *connection)
{
    return connection->layer != NULL && connection->layer->is_open && connection->cause != MQ_CLOSE_PEER &&
           connection->cause != MQ_CLOSE_RESET;
}

static void reap(mq_loop *loop)
{
    mq_engine *engine = loop->engine;
    mq_link *link;
    while (!mq_events_full(engine, false) && (link = engine->closing.first) != NULL) {
        mq_connection *connection = MQ_LINKED(link, mq_connection, turn);
        if (connection->fd < 0)
            break; /* mq_engine_step() ends it */
        mq_fifo_leave(link);
        bool may = !connection->blocked && mq_journal_written(engine);
        uint32_t length = may ? mq_sendable_bytes(engine, connection) : 0;
        if (length > 0 && mq_layer_write(connection->layer, connection->fd,
                                         connection->out.at + connection->out.start, length) > 0)
            engine->counters.bytes_out += length;
        if (connection->layer != NULL)
            connection->layer->calls->end(connection->layer, connection->fd);
        mq_connection_over(engine, connection);
        if (may_linger(connection)) {
            mq_linger_begin(loop, connection);
            continue;
        }
        socket_close(engine, connection->fd, connection->cause);
        mq_connection_forget(engine, connection);
    }
    mq_counters_refresh(engine);
}

/* ---- receiving ---- */

/* Stop epoll from reporting a paused connection as readable again and again.  epoll always reports a hang-up,
 * so after one the socket is removed completely; input from before must still be read. */
static void pause_reading(mq_loop *loop, mq_connection *connection, bool has_left)
{
    if (connection->interest & EPOLLIN)
        mq_fifo_add(&loop->read_paused, &connection->socket);
    if (has_left) {
        connection->interest = 0;
        connection->hung_up = true;
        epoll_change(loop, EPOLL_CTL_DEL, connection, 0);
    } else {
        interest_set(loop, connection, connection->interest & ~(uint32_t)EPOLLIN);
    }
}

static void resume_reading(mq_loop *loop, mq_connection *connection)
{
    mq_fifo_leave(&connection->socket);
    connection->interest |= EPOLLIN;
    if (epoll_change(loop, EPOLL_CTL_MOD, connection, connection->interest) != 0 &&
        epoll_change(loop, EPOLL_CTL_ADD, connection, connection->interest) != 0)
        mq_connection_close(loop->engine, connection, MQ_CLOSE_MEMORY);
    else
        mq_layers_used(loop, connection);
}

/* True if only the broker can end this pause. */
static bool waits_for_broker(const mq_engine *engine, const mq_connection *connection)
{
    return connection->stop == MQ_STOP_PYTHON || (connection->stop == MQ_RUN && engine->journal.full);
}

static void resume_ready(mq_loop *loop)
{
    loop->unread = 0;
    for (mq_link *link = loop->read_paused.first, *next; link != NULL; link = next) {
        mq_connection *connection = MQ_LINKED(link, mq_connection, socket);
        next = link->next;
        if (connection->stop == MQ_STOP_OUT && connection->hung_up) /* its output is never sent */
            mq_connection_close(loop->engine, connection, MQ_CLOSE_RESET);
        if (connection->stop == MQ_STOP_CLOSING)
            mq_fifo_leave(link);
        else if (connection->stop == MQ_RUN && connection->turn.fifo == NULL && !loop->engine->journal.full)
            resume_reading(loop, connection);
        loop->unread += waits_for_broker(loop->engine, connection);
    }
}

static void store_violation(mq_engine *engine, const mq_connection *connection)
{
    mq_violation *last = &engine->violation;
    if (connection->layer->reason == NULL)
        return;
    last->count++;
    last->listener = connection->listener;
    mq_peer_text(connection, last->peer);
    last->reason = connection->layer->reason;
}

static void receive(mq_loop *loop, mq_connection *connection)
{
    mq_engine *engine = loop->engine;
    uint32_t capacity;
    uint8_t *to = mq_receive_buffer(engine, connection, &capacity);
    if (to == NULL) {
        if (connection->stop != MQ_STOP_INPUT)
            mq_connection_close(engine, connection, MQ_CLOSE_MEMORY);
        return;
    }
    ssize_t count = mq_layer_read(connection->layer, connection->fd, to, capacity);
    if (count > 0) {
        mq_clock_read(engine);
        mq_received(engine, connection, (uint32_t)count);
    } else if (count == 0) {
        mq_connection_close(engine, connection, MQ_CLOSE_PEER);
    } else if (errno == EPROTO || errno == EMSGSIZE) {
        mq_connection_close(engine, connection, errno == EPROTO ? MQ_CLOSE_PROTOCOL : MQ_CLOSE_TOO_LARGE);
        store_violation(engine, connection);
    } else if (errno != EAGAIN && errno != EINTR) {
        mq_connection_close(engine, connection, MQ_CLOSE_RESET);
    }
    mq_layers_used(loop, connection);
}

static bool may_read(const mq_engine *engine, const mq_connection *connection)
{
    return connection->stop == MQ_RUN && connection->turn.fifo == NULL && !engine->journal.full &&
           (!mq_events_full(engine, false) || connection->version != 0);
}

void mq_loop_read_first(mq_loop *loop, mq_connection *connection)
{
    uint32_t part = loop->engine->read_bytes;
    loop->engine->read_bytes = 0; /* the least: a batch of new connections has the round of one socket */
    if (may_read(loop->engine, connection))
        receive(loop, connection);
    loop->engine->read_bytes = part;
}

static void serve_connection(mq_loop *loop, mq_connection *connection, uint32_t events)
{
    if (connection->socket.fifo == &loop->lingering) {
        mq_linger_read(loop, connection);
        return;
    }
    if (connection->stop == MQ_STOP_CLOSING) { /* epoll would report it in each round */
        epoll_change(loop, EPOLL_CTL_DEL, connection, 0);
        return;
    }
    if (events & EPOLLOUT && layers_flush(loop, connection)) {
        connection->blocked = false;
        interest_set(loop, connection, connection->interest & ~(uint32_t)EPOLLOUT);
        mq_connection_touch(loop->engine, connection);
    }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        return;
    bool has_left = events & (EPOLLHUP | EPOLLERR);
    if (may_read(loop->engine, connection))
        receive(loop, connection);
    else if (has_left && connection->stop == MQ_STOP_OUT)
        mq_connection_close(loop->engine, connection, MQ_CLOSE_RESET);
    else if (connection->stop != MQ_RUN || loop->engine->journal.full)
        pause_reading(loop, connection, has_left);
}

/* ---- the loop ---- */

static void eventfd_drain(int fd)
{
    for (uint64_t count; read(fd, &count, sizeof count) < 0 && errno == EINTR;)
        ;
}

/* Serve connections whose layers are not open, one at a time, because a step of a handshake is long. */
static void serve_opening(mq_loop *loop)
{
    struct epoll_event event;
    int64_t until_ns = rb_clock_ns(CLOCK_MONOTONIC) + OPENING_NS;
    loop->opening_ready = false;
    while (epoll_wait(loop->opening, &event, 1, 0) > 0) {
        mq_connection *connection = mq_slab_get(&loop->engine->connections, event.data.u64);
        if (connection != NULL)
            serve_connection(loop, connection, event.events);
        if (rb_clock_ns(CLOCK_MONOTONIC) >= until_ns)
            return;
    }
}

/* Read connections with input in a layer: their sockets need not be readable.  A connection that is not read
 * now stays in the list, or comes back to it when its pause ends. */
static void serve_pending(mq_loop *loop)
{
    mq_link *link;
    uint32_t left = loop->pending.count, work = 0;
    mq_share_work(loop->engine, left);
    for (; left > 0 && work < MQ_ROUND_WORK && (link = mq_fifo_take(&loop->pending)) != NULL; left--) {
        mq_connection *connection = MQ_LINKED(link, mq_connection, socket);
        if (connection->stop == MQ_STOP_CLOSING)
            continue;
        loop->engine->turn_work = 0;
        if (connection->layer->pending)
            serve_connection(loop, connection, EPOLLIN);
        work += loop->engine->turn_work;
        mq_layers_used(loop, connection);
    }
}

static void serve(mq_loop *loop, const struct epoll_event *event)
{
    mq_engine *engine = loop->engine;
    if (event->data.u64 == TAG_WAKE) {
        eventfd_drain(loop->wake);
        /* The log thread writes this eventfd after a sync (rb_log_sync), producers after a record.
         * producers_pending makes mq_engine_step() read the producer rings.  Each step also sends the PUBACKs
         * whose records are durable. */
        engine->producers_pending = true;
    } else if (event->data.u64 == TAG_CALL) {
        eventfd_drain(loop->call);
        loop->called = true;
    } else if (event->data.u64 == TAG_OPENING) {
        loop->opening_ready = true;
    } else if (event->data.u64 < MQ_LISTENERS_MAX) {
        if (loop->rest_until_ms[event->data.u64] == 0)
            mq_accept_some(loop, (int)event->data.u64, false);
    } else {
        mq_connection *connection = mq_slab_get(&engine->connections, event->data.u64);
        if (connection != NULL)
            serve_connection(loop, connection, event->events);
        if (engine->appended_bytes >= FLUSH_AFTER_BYTES)
            flush(loop);
    }
}

static void round_begin(mq_loop *loop)
{
    mq_engine *engine = loop->engine;
    mq_engine_step(engine);
    flush(loop);
    if (engine->closing.first != NULL)
        reap(loop);
    resume_ready(loop); /* also if there is none left: reap() may have ended the last one */
    mq_pulse_waiting(engine, loop->unread + (engine->journal.stalled ? engine->touched.count : 0));
    mq_linger_expire(loop);
    mq_accept_again(loop);
}

/* Milliseconds to sleep, until the engine, a paused listener or the caller is due. */
static int wait_ms(const mq_loop *loop, uint64_t until_ms)
{
    const mq_engine *engine = loop->engine;
    uint64_t due = loop->pending.count > 0 ? 0 : mq_engine_due(engine), at = mq_linger_due_ms(loop);
    at = until_ms < at ? until_ms : at;
    for (int i = 0; i < MQ_LISTENERS_MAX; i++)
        if (loop->rest_until_ms[i] != 0 && loop->rest_until_ms[i] < at)
            at = loop->rest_until_ms[i];
    if (at != MQ_NEVER) {
        uint64_t left = at <= engine->now_ms ? 0 : at - engine->now_ms;
        due = left < due ? left : due;
    }
    return due == MQ_NEVER ? -1 : due > 3600000 ? 3600000 : (int)due;
}

int mq_loop_poll(mq_loop *loop, int timeout_ms)
{
    mq_engine *engine = loop->engine;
    struct epoll_event events[BATCH];
    mq_clock_read(engine);
    uint64_t until_ms = timeout_ms < 0 ? MQ_NEVER : engine->now_ms + (uint64_t)timeout_ms;
    loop->called = false;
    mq_events_resume(engine);
    for (bool waited = false;; waited = true) {
        round_begin(loop);
        if (loop->opening_ready)
            serve_opening(loop);
        uint32_t waiting = mq_events_waiting(engine);
        if (waited && (waiting > 0 || loop->called || engine->now_ms >= until_ms))
            return (int)waiting;
        mq_pulse_beat(engine);
        uint64_t began_ms = engine->now_ms;
        int count = epoll_wait(loop->epoll, events, BATCH, waiting ? 0 : wait_ms(loop, until_ms));
        mq_pulse_beat(engine);
        if (count < 0 && errno != EINTR)
            return -errno;
        mq_clock_read(engine);
        engine->counters.wakeups++;
        engine->read_bytes = count > 0 ? READ_ROUND_BYTES / (uint32_t)count : 0;
        mq_share_work(engine, count > 0 ? (uint32_t)count : 0);
        for (int i = 0; i < count; i++)
            serve(loop, &events[i]);
        if (loop->pending.count > 0)
            serve_pending(loop);
        if (mq_events_waiting(engine) == 0)
            loop->polled_ms = began_ms;
        if (count >= 0)
            mq_input_was_read(engine, began_ms, count < BATCH);
    }
}

void mq_loop_send(mq_loop *loop)
{
    flush(loop);
}

void mq_loop_flush(mq_loop *loop)
{
    uint32_t left = loop->engine->touched.count;
    mq_clock_read(loop->engine);
    do
        round_begin(loop);
    while (loop->engine->touched.count > 0 && left-- > 0);
}

mq_loop *mq_loop_open(mq_engine *engine)
{
    mq_loop *loop = calloc(1, sizeof *loop);
    if (loop == NULL)
        return NULL;
    loop->engine = engine;
    memset(loop->listeners, -1, sizeof loop->listeners);
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    loop->opening = epoll_create1(EPOLL_CLOEXEC);
    loop->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    loop->call = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (loop->epoll < 0 || loop->opening < 0 || loop->wake < 0 || loop->call < 0 ||
        mq_loop_set_interest(loop->epoll, EPOLL_CTL_ADD, loop->opening, EPOLLIN, TAG_OPENING) != 0 ||
        mq_loop_set_interest(loop->epoll, EPOLL_CTL_ADD, loop->wake, EPOLLIN, TAG_WAKE) != 0 ||
        mq_loop_set_interest(loop->epoll, EPOLL_CTL_ADD, loop->call, EPOLLIN, TAG_CALL) != 0) {
        int error = errno;
        mq_loop_close(loop);
        errno = error;
        return NULL;
    }
    mq_clock_read(engine);
    return loop;
}

void mq_loop_close(mq_loop *loop)
{
    mq_engine *engine = loop->engine;
    mq_loop_close_listeners(loop);
    for (uint32_t i = 0; i < engine->connections.created; i++) {
        mq_connection *connection = mq_slab_at(&engine->connections, i);
        if (connection->item.generation & 1 && connection->fd >= 0) {
            socket_close(engine, connection->fd, MQ_CLOSE_SERVER);
            mq_connection_forget(engine, connection);
        }
    }
    int fds[] = {loop->epoll, loop->opening, loop->wake, loop->call};
    for (int i = 0; i < 4; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(loop);
}

int mq_loop_wake_fd(mq_loop *loop)
{
    return loop->wake;
}

int mq_loop_call_fd(mq_loop *loop)
{
    return loop->call;
}
