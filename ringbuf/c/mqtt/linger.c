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
    if (loop->lingering.count == 0)
        loop->linger_due_ms = due_ms(connection);
    uint32_t before = loop->lingering.count;
    mq_list_add(&loop->lingering, handle);
    if (loop->lingering.count == before) { /* no memory */
        finish(loop, connection);
        return;
    }
    connection->lingers = true;
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

void mq_linger_expire(mq_loop *loop)
{
    if (loop->lingering.count == 0 || loop->engine->now_ms < loop->linger_due_ms)
        return;
    uint32_t kept = 0;
    uint64_t now_ms = loop->engine->now_ms, next_ms = MQ_NEVER;
    for (uint32_t i = 0; i < loop->lingering.count; i++) {
        mq_connection *connection = mq_slab_get(&loop->engine->connections, loop->lingering.at[i]);
        if (connection == NULL)
            continue;
        if (due_ms(connection) <= now_ms) {
            finish(loop, connection);
            continue;
        }
        next_ms = due_ms(connection) < next_ms ? due_ms(connection) : next_ms;
        loop->lingering.at[kept++] = loop->lingering.at[i];
    }
    loop->lingering.count = kept;
    loop->linger_due_ms = next_ms;
}
