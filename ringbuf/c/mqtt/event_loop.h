/* SPDX-License-Identifier: Apache-2.0
 *
 * State of the event loop, which event_loop.c, accept.c and linger.c share.
 */
#ifndef BRIM_MQTT_EVENT_LOOP_H
#define BRIM_MQTT_EVENT_LOOP_H

#include "mqtt/mqtt.h"
#include "mqtt/transport/layer.h"

struct mq_loop {
    mq_engine *engine;
    int epoll, wake, call;
    int opening; /* epoll of connections whose layers are not open yet; `epoll` watches it */
    bool opening_ready; /* it has events */
    int listeners[MQ_LISTENERS_MAX];          /* -1: none */
    uint64_t rest_until_ms[MQ_LISTENERS_MAX]; /* 0: accepting */
    bool waits_for_place[MQ_LISTENERS_MAX];   /* paused because it is full */
    uint64_t polled_ms; /* begin of the last poll whose events were served, in Python too */
    bool called;
    mq_fifo read_paused; /* connections removed from epoll's readable events */
    uint32_t unread; /* number of them that only the broker can resume */
    mq_fifo pending; /* connections that are not paused, with input in a layer */
    mq_fifo lingering; /* connections that have sent their last output, the oldest first */
};

void mq_clock_read(mq_engine *engine);
/* epoll_ctl() for `fd`.  0, or -1 with errno. */
int mq_loop_set_interest(int epoll, int operation, int fd, uint32_t interest, uint64_t tag);

/* Act on the flags of a connection's layers after a call or a change of them. */
void mq_layers_used(mq_loop *loop, mq_connection *connection);

/* Read a new connection without layers before epoll watches it: CONNECT has often come already. */
void mq_loop_read_first(mq_loop *loop, mq_connection *connection);

/* linger.c */
/* Close the output of a closing connection, after its last byte, and wait for the peer's end. */
void mq_linger_begin(mq_loop *loop, mq_connection *connection);
/* Ignore input of such a connection, or close it at the end. */
void mq_linger_read(mq_loop *loop, mq_connection *connection);
uint64_t mq_linger_due_ms(const mq_loop *loop); /* MQ_NEVER: no connection lingers */
/* Close such connections whose time is over. */
void mq_linger_expire(mq_loop *loop);

/* accept.c */
/* Accept connections of listener `number`.  `refuses`: refuse clients without a place; otherwise they stay in
 * the kernel's queue for now. */
void mq_accept_some(mq_loop *loop, int number, bool refuses);
/* Resume listeners whose pause is over, or that have a place again. */
void mq_accept_again(mq_loop *loop);

#endif
