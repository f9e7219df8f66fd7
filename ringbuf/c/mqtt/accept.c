/* SPDX-License-Identifier: Apache-2.0
 *
 * Accepting: new sockets become connections with the layers of their listener, or are refused because of
 * connections_max.
 *
 * A listener is paused while it is full or while the process has no free descriptor, because level-triggered
 * epoll would report it all the time.
 */
#include "mqtt/event_loop.h"
#include "mqtt/peer.h"
#include "mqtt/transport/proxy_layer.h"
#include "mqtt/transport/tls.h"
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

/* Put a new layer next to the parser.  False: no memory. */
static bool add_layer(mq_connection *connection, mq_layer *layer)
{
    if (layer != NULL)
        connection->layer = layer;
    return layer != NULL;
}

static bool begin_proxy(mq_connection *connection)
{
    connection->proxying = true;
    return add_layer(connection, mq_proxy_layer());
}

/* Create the layers between socket, or PROXY header, and parser, by the settings of the listener.  False: no
 * memory. */
static bool open_layers(mq_engine *engine, mq_connection *connection)
{
    const mq_listener *own = &engine->listeners[connection->listener];
    if (own->tls != NULL && !add_layer(connection, mq_tls_layer(connection->layer, &own->tls)))
        return false;
    if (!own->is_websocket)
        return true;
    uint32_t packet_max =
        own->packet_max_bytes != 0 ? own->packet_max_bytes : engine->limits.packet_max_bytes;
    connection->upgrading = true;
    return add_layer(connection,
                     mq_websocket_layer(connection->layer, connection->packet_max_bytes, packet_max));
}

static bool listener_full(const mq_engine *engine, int number)
{
    const mq_listener *own = &engine->listeners[number];
    return engine->connections.live >= engine->limits.connections_max ||
           (own->connections_max != 0 && own->connections >= own->connections_max);
}

static void set_peer(mq_connection *connection, const mq_peer *from)
{
    connection->address_family = from->family;
    connection->port = from->port;
    memcpy(connection->address, from->address, sizeof from->address);
}

/* Owner of the address, with an added reference.  NULL: the address is charged for nothing. */
static mq_owner *owner_of(mq_engine *engine, const mq_peer *from)
{
    bool is_6 = from->family == AF_INET6, ip = from->family == AF_INET || is_6;
    return ip ? mq_owner_of_peer(engine, is_6, from->address) : NULL;
}

/* Make a connection of a socket, or refuse it by closing the socket.  Until CONNECT, the connection is
 * charged to its address; a proxy is not charged for its clients. */
static void adopt(mq_loop *loop, int fd, int number, const mq_peer *from)
{
    mq_engine *engine = loop->engine;
    bool is_proxied = engine->listeners[number].is_proxied;
    mq_owner *owner = is_proxied ? NULL : owner_of(engine, from);
    bool full = listener_full(engine, number) || !mq_owner_may(engine, owner, MQ_OWNED_OPENING, 1);
    engine->counters.closed[MQ_CLOSE_LIMIT] += full;
    mq_connection *connection = full ? NULL : mq_connection_open(engine, fd, number);
    if (connection == NULL) {
        mq_owner_drop(engine, owner);
        close(fd);
        return;
    }
    mq_connection_owned(engine, connection, owner, MQ_OWNED_OPENING);
    connection->interest = EPOLLIN;
    set_peer(connection, from);
    bool layered = is_proxied ? begin_proxy(connection) : open_layers(engine, connection);
    connection->opening = connection->layer != NULL && !connection->layer->is_open;
    if (layered && connection->layer == NULL)
        mq_loop_read_first(loop, connection);
    if (!layered || mq_loop_set_interest(connection->opening ? loop->opening : loop->epoll, EPOLL_CTL_ADD, fd,
                                         EPOLLIN, mq_handle(&connection->item)) != 0)
        mq_connection_close(engine, connection, MQ_CLOSE_MEMORY);
}

/* Charge a connection behind a proxy to the address of its client.  False: a limit of the address is
 * reached. */
static bool charge_client(mq_engine *engine, mq_connection *connection, const mq_peer *from)
{
    mq_owner *owner = owner_of(engine, from);
    set_peer(connection, from);
    if (!mq_owner_may_attach(engine, owner, MQ_OWNED_OPENING)) {
        mq_owner_drop(engine, owner);
        return false;
    }
    mq_connection_owned(engine, connection, owner, MQ_OWNED_OPENING);
    return true;
}

/* Documented in mqtt_api.h. */
void mq_loop_proxied(mq_loop *loop, uint64_t handle, int family, const uint8_t *address, int port)
{
    mq_engine *engine = loop->engine;
    mq_connection *connection = mq_slab_get(&engine->connections, handle);
    if (connection == NULL || !connection->proxying || connection->stop != MQ_STOP_PYTHON)
        return;
    bool is_proxy = family <= 0;
    mq_peer from = {.family = is_proxy ? connection->address_family : (uint8_t)family,
                    .port = is_proxy ? connection->port : (uint16_t)port};
    memcpy(from.address, is_proxy ? connection->address : address, sizeof from.address);
    if (family < 0 || !charge_client(engine, connection, &from)) {
        mq_connection_close(engine, connection, family < 0 ? MQ_CLOSE_PROTOCOL : MQ_CLOSE_LIMIT);
        return;
    }
    mq_layers_free(connection->layer);
    connection->layer = NULL;
    connection->proxying = false;
    if (!open_layers(engine, connection))
        mq_connection_close(engine, connection, MQ_CLOSE_MEMORY);
    else
        mq_layers_used(loop, connection);
}

/* Pause a listener, because level-triggered epoll would report it all the time. */
static void pause_accepting(mq_loop *loop, int number, uint32_t ms, bool waits_for_place)
{
    if (loop->listeners[number] < 0 || loop->rest_until_ms[number] != 0)
        return;
    loop->rest_until_ms[number] = loop->engine->now_ms + ms;
    loop->waits_for_place[number] = waits_for_place;
    mq_loop_set_interest(loop->epoll, EPOLL_CTL_DEL, loop->listeners[number], 0, 0);
}

void mq_accept_some(mq_loop *loop, int number, bool refuses)
{
    mq_engine *engine = loop->engine;
    int accepts_max = mq_events_waiting(engine) > 0 ? ACCEPT_FEW : ACCEPT_BATCH;
    for (int i = 0; i < accepts_max; i++) {
        struct sockaddr_storage address = {0};
        socklen_t length = sizeof address;
        if (!refuses && listener_full(engine, number)) {
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

/* The wait for a place ends with a poll that begins after it: it finds clients that left meanwhile, also if
 * the process was stopped or busy for longer. */
void mq_accept_again(mq_loop *loop)
{
    for (int i = 0; i < MQ_LISTENERS_MAX; i++) {
        if (loop->rest_until_ms[i] == 0 || loop->listeners[i] < 0)
            continue;
        bool waits = loop->waits_for_place[i];
        bool is_over = (waits ? loop->polled_ms : loop->engine->now_ms) >= loop->rest_until_ms[i];
        bool has_place = waits && !listener_full(loop->engine, i);
        if (!is_over && !has_place)
            continue;
        loop->rest_until_ms[i] = 0;
        if (mq_loop_set_interest(loop->epoll, EPOLL_CTL_ADD, loop->listeners[i], EPOLLIN, (uint64_t)i) != 0) {
            loop->engine->counters.accept_rests++;
            pause_accepting(loop, i, REST_MS, false);
            continue;
        }
        if (waits)
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
    if (mq_loop_set_interest(loop->epoll, EPOLL_CTL_ADD, fd, EPOLLIN, (uint64_t)number) != 0)
        return -errno;
    loop->listeners[number] = fd;
    return 0;
}
