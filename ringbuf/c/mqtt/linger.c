/* SPDX-License-Identifier: Apache-2.0
 *
 * Lingering: the end of a connection with layers, after its last output (RFC 6455, section 7.1.1).
 *
 * A socket that is closed with unread input resets the connection, and the peer may lose the close frame and
 * the output before it.  So only the output of the socket is closed.  Input is read and ignored until the
 * peer has closed too, for LINGER_MS and IGNORED_MAX_BYTES at most.  The connection counts against the limits
 * until then.
 */
#include "mqtt/event_loop.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINGER_MS 2000u
#define IGNORED_MAX_BYTES (4u << 20)

static void finish(mq_loop *loop, mq_connection *connection)
{
    close(connection->fd);
    mq_connection_forget(loop->engine, connection);
}

static uint64_t due_ms(const mq_connection *connection)
{
    return connection->last_seen_ms + LINGER_MS;
}

void mq_linger_begin(mq_loop *loop, mq_connection *connection)
{
    uint64_t handle = mq_handle(&connection->item);
    int epoll = connection->opening ? loop->opening : loop->epoll;
    connection->last_seen_ms = loop->engine->now_ms;
    connection->ignored_bytes = 0;
    if (shutdown(connection->fd, SHUT_WR) != 0 ||
        (mq_loop_set_interest(epoll, EPOLL_CTL_MOD, connection->fd, EPOLLIN, handle) != 0 &&
         mq_loop_set_interest(epoll, EPOLL_CTL_ADD, connection->fd, EPOLLIN, handle) != 0)) {
        finish(loop, connection);
        return;
    }
    mq_fifo_add(&loop->lingering, &connection->socket);
    connection->interest = EPOLLIN;
    mq_layers_free(connection->layer);
    connection->layer = NULL;
    mq_bytes_free(loop->engine, &connection->out);
}

void mq_linger_read(mq_loop *loop, mq_connection *connection)
{
    ssize_t count = recv(connection->fd, loop->engine->receive, MQ_READ_BYTES, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    connection->ignored_bytes += count > 0 ? (uint32_t)count : 0;
    if (count <= 0 || connection->ignored_bytes > IGNORED_MAX_BYTES)
        finish(loop, connection);
}

uint64_t mq_linger_due_ms(const mq_loop *loop)
{
    const mq_link *first = loop->lingering.first;
    return first == NULL ? MQ_NEVER : due_ms(MQ_LINKED(first, const mq_connection, socket));
}

void mq_linger_expire(mq_loop *loop)
{
    while (mq_linger_due_ms(loop) <= loop->engine->now_ms)
        finish(loop, MQ_LINKED(loop->lingering.first, mq_connection, socket));
}
