/* SPDX-License-Identifier: Apache-2.0
 *
 * A server with minimal work, so that a measurement against it measures the generator.
 *
 * It knows no topics: each message goes to all clients with any subscription, as QoS 0 and in the sender's
 * version.  A send waits for the socket for at most a second: the generator always reads.
 */
#include "load/load.h"
#include "base/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BATCH 256
#define COPY_BYTES (128u * 1024) /* bytes sent at once; fewer at the end of a round */
#define PATIENCE_MS 1000

typedef struct peer {
    int fd; /* -1: free */
    uint8_t version;
    bool subscribed;
    ld_buffer rest;
} peer;

struct ld_sink {
    int epoll, listener;
    peer *peers;
    uint32_t peer_count;
    bool subscribers;          /* true after the first subscription */
    ld_buffer answers, copies; /* for the packets in work: answers to the sender, copies to subscribers */
    uint8_t *receive;
    uint32_t receive_capacity;
};

static void peer_close(peer *client)
{
    close(client->fd);
    free(client->rest.at);
    *client = (peer){.fd = -1};
}

static bool send_all(const peer *client, const ld_buffer *bytes)
{
    uint32_t at = bytes->start;
    while (at < bytes->end) {
        ssize_t sent = send(client->fd, bytes->at + at, bytes->end - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) {
            at += (uint32_t)sent;
            continue;
        }
        struct pollfd writable = {.fd = client->fd, .events = POLLOUT};
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN || poll(&writable, 1, PATIENCE_MS) <= 0)
            return false;
    }
    return true;
}

/* ---- packets ---- */

static bool copy(ld_sink *sink, uint8_t head, const uint8_t *body, uint32_t length)
{
    uint32_t name = 2u + ld_u16(body), id = head & 6 ? 2 : 0;
    uint8_t start[5];
    start[0] = 0x30;
    uint32_t start_length = (uint32_t)(ld_varint_put(start + 1, length - id) - start);
    return ld_room(&sink->copies, start_length + length) && ld_put(&sink->copies, start, start_length) &&
           ld_put(&sink->copies, body, name) && ld_put(&sink->copies, body + name + id, length - name - id);
}

static bool on_publish(ld_sink *sink, uint8_t head, const uint8_t *body, uint32_t length)
{
    uint32_t qos = head >> 1 & 3, name = length < 2 ? length : 2u + ld_u16(body);
    if (length < 2 || name + (qos ? 2 : 0) > length || (sink->subscribers && !copy(sink, head, body, length)))
        return false;
    uint8_t answer[] = {qos == 1 ? 0x40 : 0x50, 2, body[qos ? name : 0], body[qos ? name + 1 : 0]};
    return qos == 0 || ld_put(&sink->answers, answer, sizeof answer);
}

/* Answer with one code per filter, all QoS 0. */
static bool on_subscribe(ld_sink *sink, peer *client, const uint8_t *body, uint32_t length)
{
    static const uint8_t none[1] = {0};
    uint32_t properties = client->version == 5, filters = 0;
    if (length < 3)
        return false;
    uint32_t at = 2;
    if (properties && (at = ld_properties_end(body, at, length)) == 0)
        return false;
    for (; length - at >= 3 && 3u + ld_u16(body + at) <= length - at; at += 3u + ld_u16(body + at))
        filters++;
    uint8_t start[5] = {0x90};
    uint32_t start_length = (uint32_t)(ld_varint_put(start + 1, 2 + properties + filters) - start);
    client->subscribed = sink->subscribers = true;
    bool put = ld_put(&sink->answers, start, start_length) && ld_put(&sink->answers, body, 2) &&
               ld_put(&sink->answers, none, properties);
    for (uint32_t i = 0; put && i < filters; i++)
        put = ld_put(&sink->answers, none, 1);
    return put;
}

/* Handle a packet.  False: the connection ends. */
static bool packet(ld_sink *sink, peer *client, uint8_t head, const uint8_t *body, uint32_t length)
{
    switch (head & 0xf0) {
    case 0x10:
        if (length < 7)
            return false;
        client->version = body[6];
        return client->version == 5 ? ld_put(&sink->answers, "\x20\x03\x00\x00\x00", 5)
                                    : ld_put(&sink->answers, "\x20\x02\x00\x00", 4);
    case 0x30:
        return on_publish(sink, head, body, length);
    case 0x60: {
        uint8_t answer[] = {0x70, 2, body[0], length < 2 ? 0 : body[1]};
        return length >= 2 && ld_put(&sink->answers, answer, sizeof answer);
    }
    case 0x80:
        return on_subscribe(sink, client, body, length);
    case 0xc0:
        return ld_put(&sink->answers, "\xd0\x00", 2);
    default:
        return (head & 0xf0) != 0xe0;
    }
}

/* Handle all complete packets.  Returns the bytes used; -1: the connection ends. */
static int64_t packets(ld_sink *sink, peer *client, const uint8_t *bytes, uint32_t length)
{
    uint32_t at = 0, of_it;
    while (length - at >= 2) {
        int taken = ld_varint(bytes + at + 1, length - at - 1, &of_it);
        if (taken < 0)
            return -1;
        if (taken == 0 || length - at - 1 - (uint32_t)taken < of_it)
            break;
        if (!packet(sink, client, bytes[at], bytes + at + 1 + taken, of_it))
            return -1;
        at += 1 + (uint32_t)taken + of_it;
    }
    return at;
}

/* ---- sockets ---- */

static void copies_send(ld_sink *sink)
{
    for (uint32_t i = 0; i < sink->peer_count && sink->copies.end > 0; i++)
        if (sink->peers[i].fd >= 0 && sink->peers[i].subscribed && !send_all(&sink->peers[i], &sink->copies))
            peer_close(&sink->peers[i]);
    sink->copies.start = sink->copies.end = 0;
}

static void receive(ld_sink *sink, peer *client)
{
    uint32_t length_kept = client->rest.end;
    if (sink->receive_capacity - length_kept < LD_RECEIVE_BYTES) {
        uint8_t *larger = realloc(sink->receive, length_kept + 2 * LD_RECEIVE_BYTES);
        if (larger == NULL) {
            peer_close(client);
            return;
        }
        sink->receive = larger;
        sink->receive_capacity = length_kept + 2 * LD_RECEIVE_BYTES;
    }
    ssize_t count = recv(client->fd, sink->receive + length_kept, LD_RECEIVE_BYTES, MSG_DONTWAIT);
    if (count <= 0) {
        if (count == 0 || (errno != EAGAIN && errno != EINTR))
            peer_close(client);
        return;
    }
    if (length_kept > 0)
        memcpy(sink->receive, client->rest.at, length_kept);
    uint32_t length = length_kept + (uint32_t)count;
    sink->answers.start = sink->answers.end = 0;
    int64_t used = packets(sink, client, sink->receive, length);
    client->rest.end = 0;
    if (used < 0 || !ld_put(&client->rest, sink->receive + used, length - (uint32_t)used) ||
        !send_all(client, &sink->answers))
        peer_close(client);
    if (sink->copies.end >= COPY_BYTES)
        copies_send(sink);
}

static void accept_all(ld_sink *sink)
{
    int fd, yes = 1;
    while ((fd = accept4(sink->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        uint32_t place = 0;
        while (place < sink->peer_count && sink->peers[place].fd >= 0)
            place++;
        if (place == sink->peer_count) {
            peer *peers = realloc(sink->peers, (place + 1) * sizeof *peers);
            if (peers == NULL) {
                close(fd);
                return;
            }
            sink->peers = peers;
            sink->peer_count++;
        }
        sink->peers[place] = (peer){.fd = fd, .version = 4};
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes); /* fails on Unix sockets without effect */
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = place};
        if (epoll_ctl(sink->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
            peer_close(&sink->peers[place]);
    }
}

int ld_sink_poll(ld_sink *sink, int slice_ms)
{
    struct epoll_event events[BATCH];
    uint64_t until_ms = rb_now_ms() + (uint64_t)slice_ms;
    for (uint64_t now = until_ms - (uint64_t)slice_ms; now < until_ms; now = rb_now_ms()) {
        int count = epoll_wait(sink->epoll, events, BATCH, (int)(until_ms - now));
        if (count < 0 && errno != EINTR)
            return -errno;
        for (int i = 0; i < count; i++) {
            if (events[i].data.u32 == UINT32_MAX)
                accept_all(sink);
            else if (sink->peers[events[i].data.u32].fd >= 0)
                receive(sink, &sink->peers[events[i].data.u32]);
        }
        copies_send(sink);
    }
    return 0;
}

ld_sink *ld_sink_open(int listener)
{
    ld_sink *sink = calloc(1, sizeof *sink);
    if (sink == NULL)
        return NULL;
    sink->listener = listener;
    sink->receive_capacity = LD_RECEIVE_BYTES;
    sink->receive = malloc(sink->receive_capacity);
    sink->epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = UINT32_MAX};
    if (sink->receive != NULL && sink->epoll >= 0 &&
        epoll_ctl(sink->epoll, EPOLL_CTL_ADD, listener, &event) == 0)
        return sink;
    int error = sink->receive == NULL ? ENOMEM : errno;
    ld_sink_close(sink);
    errno = error;
    return NULL;
}

void ld_sink_close(ld_sink *sink)
{
    for (uint32_t i = 0; i < sink->peer_count; i++)
        if (sink->peers[i].fd >= 0)
            peer_close(&sink->peers[i]);
    if (sink->epoll >= 0)
        close(sink->epoll);
    free(sink->peers);
    free(sink->answers.at);
    free(sink->copies.at);
    free(sink->receive);
    free(sink);
}
