/* SPDX-License-Identifier: Apache-2.0
 *
 * Accepting: new sockets become connections, from listeners of the loop or from Python (mq_loop_adopt), or
 * are refused because of connections_max (mq_listener_full).
 *
 * A listener is paused while it is full or while the process has no free descriptor, because level-triggered
 * epoll would report it all the time.
 */
#include "mqtt/event_loop.h"
#include "mqtt/peer.h"
#include "mqtt/transport/websocket_layer.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define ACCEPT_BATCH 32
#define ACCEPT_FEW 4 /* while events wait for Python: new sockets would delay all others */
#define REST_MS 1000 /* pause of accepting without file descriptors */
#define FULL_MS 50   /* time that a new client waits for a place: others may leave meanwhile */

/* Disable Nagle's algorithm: frames are already sent in batches.  Accepted sockets inherit this from the
 * listener. */
static void send_at_once(int fd)
{
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

/* Create the layers of a connection, by the settings of its listener.  False: no memory. */
static bool open_layers(mq_engine *engine, mq_connection *connection)
{
    const mq_listener *own = &engine->listeners[connection->listener];
    const mq_limits *common = &engine->limits;
    if (own->is_websocket) {
        uint32_t packet_max = own->packet_max_bytes != 0 ? own->packet_max_bytes : common->packet_max_bytes;
        mq_layer *layer = mq_websocket_layer(connection->layer, connection->packet_max_bytes, packet_max);
        if (layer == NULL)
            return false;
        connection->layer = layer;
        connection->upgrading = true;
    }
    connection->opening = connection->layer != NULL && !connection->layer->is_open;
    return true;
}

/* True if the listener is full.  Connections in a handshake on another thread count, too. */
int mq_listener_full(const mq_engine *engine, int number)
{
    uint64_t all = engine->connections.live, here = engine->listeners[number].connections;
    for (int i = 0; i < MQ_LISTENERS_MAX; i++) {
        uint32_t outside = __atomic_load_n(&engine->listeners[i].outside, __ATOMIC_RELAXED);
        all += outside;
        here += i == number ? outside : 0;
    }
    uint32_t most = engine->listeners[number].connections_max;
    return all >= engine->limits.connections_max || (most != 0 && here >= most);
}

/* Adopt a socket.  NULL: refused, with the socket closed.  Until CONNECT, the connection is charged to its
 * address. */
static mq_connection *adopt(mq_loop *loop, int fd, int number, const mq_peer *from)
{
    mq_engine *engine = loop->engine;
    bool is_6 = from->family == AF_INET6, ip = from->family == AF_INET || is_6;
    mq_owner *owner = ip ? mq_owner_of_peer(engine, is_6, from->address) : NULL;
    bool full = mq_listener_full(engine, number) || !mq_owner_may(engine, owner, MQ_OWNED_OPENING, 1);
    engine->counters.closed[MQ_CLOSE_LIMIT] += full;
    mq_connection *connection = full ? NULL : mq_connection_open(engine, fd, number);
    if (connection == NULL) {
        mq_owner_drop(engine, owner);
        close(fd);
        return NULL;
    }
    mq_connection_owned(engine, connection, owner, MQ_OWNED_OPENING);
    connection->interest = EPOLLIN;
    connection->address_family = from->family;
    connection->port = from->port;
    memcpy(connection->address, from->address, sizeof from->address);
    if (open_layers(engine, connection) &&
        mq_loop_watch(connection->opening ? loop->opening : loop->epoll, EPOLL_CTL_ADD, fd, EPOLLIN,
                      mq_handle(&connection->item)) == 0)
        return connection;
    mq_connection_forget(engine, connection);
    close(fd);
    return NULL;
}

uint64_t mq_loop_adopt(mq_loop *loop, int fd, int number, int family, const uint8_t *address, int port,
                       uint32_t waited_ms)
{
    mq_engine *engine = loop->engine;
    mq_peer from = {.family = (uint8_t)family, .port = (uint16_t)port};
    memcpy(from.address, address, sizeof from.address);
    send_at_once(fd);
    mq_clock_read(engine);
    mq_connection *connection = adopt(loop, fd, number, &from);
    if (connection == NULL)
        return 0;
    connection->known = true; /* Python has state for it */
    connection->last_seen_ms -= waited_ms < engine->now_ms ? waited_ms : engine->now_ms;
    uint64_t due = connection->last_seen_ms + connection->idle_max_ms;
    if (due < engine->next_deadline_ms)
        engine->next_deadline_ms = due;
    return mq_handle(&connection->item);
}

/* Pause a listener, because level-triggered epoll would report it all the time. */
static void pause_accepting(mq_loop *loop, int number, uint32_t ms, bool waits_for_place)
{
    if (loop->listeners[number] < 0 || loop->rest_until_ms[number] != 0)
        return;
    loop->rest_until_ms[number] = loop->engine->now_ms + ms;
    loop->waits_for_place[number] = waits_for_place;
    mq_loop_watch(loop->epoll, EPOLL_CTL_DEL, loop->listeners[number], 0, 0);
}

void mq_accept_some(mq_loop *loop, int number, bool refuses)
{
    mq_engine *engine = loop->engine;
    int most = mq_events_waiting(engine) > 0 ? ACCEPT_FEW : ACCEPT_BATCH;
    for (int i = 0; i < most; i++) {
        struct sockaddr_storage address = {0};
        socklen_t length = sizeof address;
        if (!refuses && mq_listener_full(engine, number)) {
            pause_accepting(loop, number, FULL_MS, true);
            return;
        }
        int fd = accept4(loop->listeners[number], (struct sockaddr *)&address, &length,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            mq_peer from = mq_peer_of(&address);
            adopt(loop, fd, number, &from);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            engine->counters.accept_rests++;
            for (int n = 0; n < MQ_LISTENERS_MAX; n++)
                pause_accepting(loop, n, REST_MS, false);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

void mq_accept_again(mq_loop *loop)
{
    for (int i = 0; i < MQ_LISTENERS_MAX; i++) {
        if (loop->rest_until_ms[i] == 0 || loop->listeners[i] < 0)
            continue;
        bool is_over = loop->engine->now_ms >= loop->rest_until_ms[i];
        bool has_place = loop->waits_for_place[i] && !mq_listener_full(loop->engine, i);
        if (!is_over && !has_place)
            continue;
        loop->rest_until_ms[i] = 0;
        mq_loop_watch(loop->epoll, EPOLL_CTL_ADD, loop->listeners[i], EPOLLIN, (uint64_t)i);
        if (loop->waits_for_place[i])
            mq_accept_some(loop, i, is_over);
    }
}

void mq_loop_close_listeners(mq_loop *loop)
{
    for (int i = 0; i < MQ_LISTENERS_MAX; i++)
        if (loop->listeners[i] >= 0) {
            close(loop->listeners[i]);
            loop->listeners[i] = -1;
            loop->rest_until_ms[i] = 0;
        }
}

int mq_loop_listen(mq_loop *loop, int fd, int number)
{
    if (number < 0 || number >= MQ_LISTENERS_MAX || loop->listeners[number] >= 0)
        return -EINVAL;
    send_at_once(fd);
    if (mq_loop_watch(loop->epoll, EPOLL_CTL_ADD, fd, EPOLLIN, (uint64_t)number) != 0)
        return -errno;
    loop->listeners[number] = fd;
    return 0;
}
