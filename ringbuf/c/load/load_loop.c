/* SPDX-License-Identifier: Apache-2.0
 *
 * The clients' sockets and their schedule.  All system calls of the generator are here.
 *
 * One round: clients that are due are added to `ready`.  Each client in `ready` builds a chunk and sends it
 * once.  Then the loop waits, unless `ready` has clients, and reads from readable sockets.  A timerfd ends
 * the wait `spin_us` before the next message is due.  From then on the loop stays awake, so that neither the
 * message nor its arrival is late; that delay would be counted as the broker's time.
 */
#include "load/load.h"
#include "base/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define BATCH 256
#define TAG_TIMER UINT32_MAX
#define SPINS_UNDER_WAY 4 /* times spin_us: time awake for a message in flight */
#define OPEN_BATCH 64      /* connect() calls in one round */

static void interest_set(ld_run *run, ld_client *client, uint32_t interest)
{
    struct epoll_event event = {.events = interest, .data.u32 = (uint32_t)(client - run->clients)};
    if (client->interest == interest)
        return;
    client->interest = interest;
    epoll_ctl(run->epoll, EPOLL_CTL_MOD, client->fd, &event);
}

/* ---- the end of a connection ---- */

static void gone(ld_run *run, ld_client *client)
{
    if (client->state == LD_OPENING || client->state == LD_GREETING)
        run->connecting--;
    if (client->state == LD_SUBSCRIBING || client->state == LD_READY)
        run->counters.connected--;
    if (client->state == LD_READY)
        run->settled--;
    if (client->pinged)
        run->pings--;
    if (client->topic_count > 0 &&
        (run->settings.messages_max == 0 || client->sent < run->settings.messages_max))
        run->finished++;
    client->state = LD_GONE;
    client->pinged = false;
    run->gone++;
    close(client->fd);
    client->fd = -1;
    free(client->out.at);
    free(client->rest.at);
    client->out = client->rest = (ld_buffer){0};
}

static void failed(ld_run *run, ld_client *client, int kind, int64_t detail)
{
    ld_fail(run, kind, detail);
    gone(run, client);
}

/* ---- sending ---- */

/* Remove what send() has sent from the output.  True if nothing is left. */
static bool remove_sent(ld_run *run, ld_client *client, ssize_t sent)
{
    ld_buffer *out = &client->out;
    sent = sent < 0 ? 0 : sent;
    run->counters.bytes_out += (uint64_t)sent;
    out->start += (uint32_t)sent;
    if (out->start < out->end)
        return false;
    if (client->topic_count == 0) {
        free(out->at);
        *out = (ld_buffer){0};
    }
    return true;
}

/* Send the output, once.  False: the connection has ended. */
static bool send_out(ld_run *run, ld_client *client)
{
    ld_buffer *out = &client->out;
    if (out->end == out->start || client->is_blocked)
        return true;
    ssize_t sent = send(client->fd, out->at + out->start, out->end - out->start, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        failed(run, client, LD_FAIL_RESET, errno);
        return false;
    }
    if (!remove_sent(run, client, sent)) {
        client->is_blocked = true;
        interest_set(run, client, EPOLLIN | EPOLLOUT);
    }
    return true;
}

static void ping(ld_run *run, ld_client *client)
{
    if (client->state != LD_READY || client->topic_count == 0)
        return;
    if (!ld_put(&client->out, "\xc0\x00", 2)) {
        ld_fail(run, LD_FAIL_MEMORY, 0);
        return;
    }
    client->pinged = true;
    run->pings++;
    send_out(run, client);
}

/* Let each client in `ready` send one chunk; clients that may continue are added again. */
static void serve_ready(ld_run *run)
{
    ld_list line = run->ready;
    run->ready = run->working;
    for (uint32_t i = 0; i < line.count; i++) {
        ld_client *client = &run->clients[line.at[i]];
        client->is_ready = false;
        if (!ld_may_send(run, client))
            continue;
        ld_fill(run, client);
        if (send_out(run, client))
            ld_ready(run, client);
    }
    line.count = 0;
    run->working = line;
}

static void feed_starved(ld_run *run)
{
    bool forgive = run->now_ns - run->delivered_ns >= LD_STALL_NS;
    uint32_t kept_count = 0;
    if (run->starved.count == 0)
        return;
    for (uint32_t i = 0; i < run->starved.count; i++) {
        ld_client *client = &run->clients[run->starved.at[i]];
        if (forgive)
            client->delivered = client->sent * client->fan;
        client->is_starved = false;
        ld_ready(run, client);
        if (!client->is_ready && client->state == LD_READY) {
            client->is_starved = true;
            run->starved.at[kept_count++] = run->starved.at[i];
        }
    }
    run->starved.count = kept_count;
    if (forgive) {
        run->counters.stalls++;
        run->delivered_ns = run->now_ns;
    }
}

/* ---- receiving ---- */

static void receive(ld_run *run, ld_client *client)
{
    uint32_t length_kept = client->rest.end - client->rest.start;
    if (run->receive_capacity - length_kept < LD_RECEIVE_BYTES) {
        uint8_t *larger = realloc(run->receive, length_kept + 2 * LD_RECEIVE_BYTES);
        if (larger == NULL) {
            failed(run, client, LD_FAIL_MEMORY, 0);
            return;
        }
        run->receive = larger;
        run->receive_capacity = length_kept + 2 * LD_RECEIVE_BYTES;
    }
    ssize_t count = recv(client->fd, run->receive + length_kept, LD_RECEIVE_BYTES, MSG_DONTWAIT);
    if (count <= 0) {
        if (count == 0)
            failed(run, client, LD_FAIL_CLOSED, 0);
        else if (errno != EAGAIN && errno != EINTR)
            failed(run, client, LD_FAIL_RESET, errno);
        return;
    }
    if (length_kept > 0)
        memcpy(run->receive, client->rest.at + client->rest.start, length_kept);
    run->now_ns = (uint64_t)rb_now_ns();
    run->counters.bytes_in += (uint64_t)count;
    uint32_t length = length_kept + (uint32_t)count;
    int64_t used = ld_packets(run, client, run->receive, length);
    if (used < 0) {
        gone(run, client);
        return;
    }
    client->rest.start = client->rest.end = 0;
    if (used < length && !ld_put(&client->rest, run->receive + used, length - (uint32_t)used))
        failed(run, client, LD_FAIL_MEMORY, 0);
    else
        send_out(run, client);
}

static void greet(ld_run *run, ld_client *client)
{
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(client->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
        failed(run, client, LD_FAIL_CONNECT, error);
        return;
    }
    client->state = LD_GREETING;
    client->is_blocked = false;
    interest_set(run, client, EPOLLIN);
    send_out(run, client);
}

static void serve(ld_run *run, const struct epoll_event *event)
{
    uint64_t expirations;
    if (event->data.u32 == TAG_TIMER) {
        while (read(run->timer, &expirations, sizeof expirations) < 0 && errno == EINTR)
            ;
        return;
    }
    ld_client *client = &run->clients[event->data.u32];
    if (client->state == LD_GONE)
        return;
    if (client->state == LD_OPENING) {
        greet(run, client);
        return;
    }
    if (event->events & EPOLLOUT) {
        client->is_blocked = false;
        interest_set(run, client, EPOLLIN);
        if (!send_out(run, client))
            return;
        ld_ready(run, client);
    }
    if (event->events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        receive(run, client);
}

/* ---- connecting ---- */

/* Retry a connection later: the queue of a Unix socket is full, and no event reports room. */
static void put_back(ld_run *run, ld_client *client)
{
    close(client->fd);
    client->fd = -1;
    client->state = LD_NEW;
    run->connecting--;
    run->connect_next--;
}

/* Send CONNECT, and wait for the answer.  A loopback connection is open when connect() returns: its CONNECT
 * leaves at once, which costs three system calls less.  Epoll reports when any other connection is open. */
static void say_hello(ld_run *run, ld_client *client)
{
    if (!ld_put(&client->out, run->frames + client->hello_at, client->hello_length)) {
        failed(run, client, LD_FAIL_MEMORY, 0);
        return;
    }
    ssize_t sent = send(client->fd, client->out.at, client->out.end, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        failed(run, client, LD_FAIL_CONNECT, errno);
        return;
    }
    client->is_blocked = !remove_sent(run, client, sent);
    client->state = client->is_blocked ? LD_OPENING : LD_GREETING;
    client->interest = client->is_blocked ? EPOLLIN | EPOLLOUT : EPOLLIN;
    struct epoll_event event = {.events = client->interest, .data.u32 = (uint32_t)(client - run->clients)};
    if (epoll_ctl(run->epoll, EPOLL_CTL_ADD, client->fd, &event) != 0)
        failed(run, client, LD_FAIL_CONNECT, errno);
}

/* Send messages without delay, and the last ACK of the handshake together with CONNECT: that packet costs the
 * generator a tenth of a connection, and the broker a wake-up. */
static void set_tcp_options(int fd)
{
    int yes = 1, no = 0;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &no, sizeof no);
}

static void open_one(ld_run *run, ld_client *client, uint64_t due_ns)
{
    const struct sockaddr *address = (const struct sockaddr *)(const void *)run->address;
    client->begun_ns = due_ns;
    client->state = LD_OPENING;
    run->connecting++;
    client->fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (client->fd < 0) {
        failed(run, client, LD_FAIL_CONNECT, errno);
        return;
    }
    if (address->sa_family != AF_UNIX)
        set_tcp_options(client->fd);
    int result = connect(client->fd, address, run->address_length);
    if (result != 0 && errno == EAGAIN && address->sa_family == AF_UNIX)
        put_back(run, client);
    else if (result != 0 && errno != EINPROGRESS)
        failed(run, client, LD_FAIL_CONNECT, errno);
    else
        say_hello(run, client);
}

/* Time at which the next client is due to connect; UINT64_MAX: it waits for others, or there is none. */
static uint64_t connect_due_ns(const ld_run *run)
{
    if (run->phase != LD_CONNECTING || run->connect_next == run->client_count ||
        run->connecting >= run->settings.connecting_max)
        return UINT64_MAX;
    if (run->settings.connects_per_s == 0)
        return run->now_ns;
    return run->start_ns + (uint64_t)(run->connect_next / run->settings.connects_per_s * 1e9);
}

static void open_due(ld_run *run)
{
    for (int i = 0; i < OPEN_BATCH; i++) {
        uint64_t due_ns = connect_due_ns(run);
        if (due_ns > run->now_ns)
            return;
        open_one(run, &run->clients[run->connect_next++], due_ns);
    }
}

/* ---- the schedule ---- */

static bool is_scheduled(const ld_run *run)
{
    uint64_t all = run->settings.messages_max * run->publishers.count;
    return run->phase == LD_PUBLISHING && run->settings.messages_per_s > 0 &&
           (all == 0 || run->scheduled < all);
}

static uint64_t message_due_ns(const ld_run *run)
{
    if (!is_scheduled(run) || run->publishers.count == 0)
        return UINT64_MAX;
    return run->start_ns + (uint64_t)((double)run->scheduled / run->settings.messages_per_s * 1e9);
}

static void schedule(ld_run *run)
{
    while (message_due_ns(run) <= run->now_ns) {
        ld_client *client = &run->clients[run->publishers.at[run->scheduled++ % run->publishers.count]];
        client->due++;
        ld_ready(run, client);
    }
}

/* ---- phases ---- */

void ld_begin(ld_run *run, int phase)
{
    run->phase = phase;
    run->now_ns = (uint64_t)rb_now_ns();
    run->counters.begun_ns = run->counters.moved_ns = run->start_ns = run->delivered_ns = run->now_ns;
    run->counters.cpu_ns = 0;
    for (uint32_t i = 0; i < run->publishers.count; i++) {
        ld_client *client = &run->clients[run->publishers.at[i]];
        ld_ready(run, client);
        if (phase == LD_DRAINING)
            ping(run, client);
    }
}

static bool is_done(const ld_run *run)
{
    const ld_counters *counters = &run->counters;
    switch (run->phase) {
    case LD_CONNECTING:
        return run->settled + run->gone == run->client_count;
    case LD_PUBLISHING:
        return run->finished == run->publishers.count;
    case LD_DRAINING:
        return run->pings == 0 && run->sent_with_id == run->acked_in_all &&
               counters->delivered >= counters->expected;
    default:
        return false;
    }
}

/* Arm the timer for the next deadline.  Returns the timeout for epoll_wait: 0, or -1. */
static int sleep_until(ld_run *run, uint64_t slice_ns)
{
    uint64_t spin_ns = (uint64_t)run->settings.spin_us * 1000, message_ns = message_due_ns(run),
             connect_ns = connect_due_ns(run), until_ns = slice_ns;
    if (run->ready.count > 0 || connect_ns <= run->now_ns)
        return 0;
    bool is_under_way = run->counters.delivered < run->counters.expected ||
                        run->sent_with_id > run->acked_in_all;
    if (is_under_way && run->now_ns - run->sent_ns < SPINS_UNDER_WAY * spin_ns)
        return 0;
    if (message_ns != UINT64_MAX) {
        if (message_ns - spin_ns <= run->now_ns)
            return 0;
        until_ns = message_ns - spin_ns < until_ns ? message_ns - spin_ns : until_ns;
    }
    until_ns = connect_ns < until_ns ? connect_ns : until_ns;
    struct itimerspec at = {
        .it_value = {.tv_sec = (time_t)(until_ns / 1000000000), .tv_nsec = (long)(until_ns % 1000000000)}};
    timerfd_settime(run->timer, TFD_TIMER_ABSTIME, &at, NULL);
    return -1;
}

int ld_poll(ld_run *run, int slice_ms)
{
    struct epoll_event events[BATCH];
    uint64_t cpu_ns = (uint64_t)rb_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    run->now_ns = (uint64_t)rb_now_ns();
    uint64_t slice_ns = run->now_ns + (uint64_t)slice_ms * 1000000;
    int result = 0;
    for (;;) {
        schedule(run);
        open_due(run);
        serve_ready(run);
        feed_starved(run);
        result = is_done(run);
        if (result != 0 || run->now_ns >= slice_ns)
            break;
        int count = epoll_wait(run->epoll, events, BATCH, sleep_until(run, slice_ns));
        if (count < 0 && errno != EINTR) {
            result = -errno;
            break;
        }
        run->now_ns = (uint64_t)rb_now_ns();
        for (int i = 0; i < count; i++)
            serve(run, &events[i]);
    }
    run->counters.cpu_ns += (uint64_t)rb_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns;
    return result;
}

int ld_loop_open(ld_run *run)
{
    run->epoll = epoll_create1(EPOLL_CLOEXEC);
    run->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = TAG_TIMER};
    if (run->epoll < 0 || run->timer < 0 || epoll_ctl(run->epoll, EPOLL_CTL_ADD, run->timer, &event) != 0)
        return errno;
    return 0;
}

void ld_loop_close(ld_run *run)
{
    for (uint32_t i = 0; i < run->client_count; i++) {
        ld_client *client = &run->clients[i];
        if (client->fd < 0)
            continue;
        if (client->state == LD_READY && client->out.start == client->out.end)
            (void)!send(client->fd, "\xe0\x00", 2, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(client->fd);
    }
    if (run->timer >= 0)
        close(run->timer);
    if (run->epoll >= 0)
        close(run->epoll);
}
