/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients whose sockets end while the broker does not read them, and epoll that adds no socket: each
 * connection ends, and the listener returns.
 *
 *     hung_up_clients     checks itself; status 0
 *
 * To be linked with --wrap=epoll_ctl.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mqtt/event_loop.h"
#include "must.h"

static bool adds_nothing; /* epoll has no memory for another socket */

int __real_epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event);

int __wrap_epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
    if (!adds_nothing || operation != EPOLL_CTL_ADD)
        return __real_epoll_ctl(epoll, operation, fd, event);
    errno = ENOMEM;
    return -1;
}

typedef struct world {
    mq_engine *engine;
    mq_loop *loop;
    struct sockaddr_in address;
    int client;
    mq_connection *connection;
} world;

static int client_new(const world *world)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(fd, (const struct sockaddr *)&world->address, sizeof world->address) == 0,
         "a client connects");
    return fd;
}

/* Poll until the engine has `connections`. */
static void settle(const world *world, uint32_t connections)
{
    for (int i = 0; i < 1000 && world->engine->connections.live != connections; i++)
        mq_loop_poll(world->loop, 1);
    must(world->engine->connections.live == connections, "connections begin and end");
}

/* An engine with one accepted client without a keep-alive. */
static world world_new(uint32_t connections_max)
{
    static const uint64_t seed[2] = {1, 2};
    mq_limits limits = {.connections_max = connections_max,
                        .connect_timeout_ms = 60000,
                        .connect_max_bytes = 1000,
                        .packet_max_bytes = 1000,
                        .share_percent = 100};
    world world = {.engine = mq_engine_new(&limits, seed), .address = {.sin_family = AF_INET}};
    world.loop = mq_loop_open(world.engine);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    socklen_t length = sizeof world.address;
    world.address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    must(bind(listener, (const struct sockaddr *)&world.address, length) == 0 && listen(listener, 4) == 0 &&
             getsockname(listener, (struct sockaddr *)&world.address, &length) == 0 &&
             mq_loop_listen(world.loop, listener, 0) == 0,
         "there is a listener");
    world.client = client_new(&world);
    settle(&world, 1);
    world.connection = mq_slab_at(&world.engine->connections, 0);
    world.connection->version = 4;
    world.connection->idle_max_ms = 0;
    return world;
}

static void world_free(const world *world)
{
    mq_loop_close(world->loop);
    mq_engine_free(world->engine);
}

/* The client resets its connection while the broker waits for an answer about it. */
static void hang_up(const world *world)
{
    static const struct linger at_once = {.l_onoff = 1};
    world->connection->stop = MQ_STOP_DEFERRED;
    setsockopt(world->client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(world->client);
    for (int i = 0; i < 1000 && world->connection->interest != 0; i++)
        mq_loop_poll(world->loop, 1);
    must(world->connection->interest == 0, "epoll does not report the end again and again");
}

static void a_client_that_epoll_cannot_add_is_closed(void)
{
    world world = world_new(4);
    hang_up(&world);
    world.connection->stop = MQ_RUN;
    adds_nothing = true;
    settle(&world, 0);
    adds_nothing = false;
    must(world.engine->counters.closed[MQ_CLOSE_MEMORY] == 1, "the cause is counted");
    world_free(&world);
}

static void a_client_that_left_with_much_output_is_closed(void)
{
    static const uint8_t output[MQ_OUT_MAX_BYTES + 1];
    world world = world_new(4);
    hang_up(&world);
    world.connection->stop = MQ_RUN; /* its input is parsed, and answered */
    must(mq_write_output(world.engine, world.connection, output, sizeof output), "there is memory");
    must(world.connection->stop == MQ_STOP_OUT, "the output waits");
    settle(&world, 0);
    must(world.engine->counters.closed[MQ_CLOSE_RESET] == 1, "the cause is counted");
    world_free(&world);
}

static void a_listener_that_epoll_cannot_add_is_added_later(void)
{
    world world = world_new(1);
    int waiting = client_new(&world);
    for (int i = 0; i < 1000 && world.loop->rest_until_ms[0] == 0; i++)
        mq_loop_poll(world.loop, 1);
    adds_nothing = true;
    close(world.client);
    settle(&world, 0);
    mq_loop_poll(world.loop, 0);
    adds_nothing = false;
    must(world.loop->rest_until_ms[0] != 0 && world.engine->counters.accept_rests > 0, "accepting is paused");
    world.loop->rest_until_ms[0] = 1; /* the pause is over */
    settle(&world, 1);
    close(waiting);
    world_free(&world);
}

int main(void)
{
    a_client_that_epoll_cannot_add_is_closed();
    a_client_that_left_with_much_output_is_closed();
    a_listener_that_epoll_cannot_add_is_added_later();
    return 0;
}
