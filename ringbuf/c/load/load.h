/* SPDX-License-Identifier: Apache-2.0
 *
 * Common parts of the load generator: the run, its clients, and their relations.
 *
 *     load.c       creates and frees
 *     load_out.c   send permission, and PUBLISH packets
 *     load_in.c    reads packets
 *     load_loop.c  sockets, clock, schedule: all system calls
 *     load_sink.c  the other side, for calibration: a loop of its own
 *
 * The generator shares no code with the broker's mqtt/: a measuring program must not share mistakes with the
 * measured one.
 *
 * A client has its own memory only for output that the socket did not accept, for an incomplete packet, and
 * for its window, so ten thousand idle clients cost little.  Publishers that may send are in `ready`.  A
 * blocked one is put there again by the event it waits for: an acknowledgement (window), the clock
 * (schedule), or epoll (socket).  Otherwise it is in `starved` and is checked after each delivery.
 */
#ifndef BRIM_LOAD_H
#define BRIM_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "load/load_api.h"

#define LD_RECEIVE_BYTES (256u * 1024)
#define LD_STALL_NS UINT64_C(1000000000)

typedef enum ld_state {
    LD_NEW,
    LD_OPENING,
    LD_GREETING,
    LD_SUBSCRIBING,
    LD_READY,
    LD_GONE
} ld_state;

/* As in the payload, see load_api.h; ringbuf/c/base/record.h excludes big-endian machines. */
typedef struct ld_stamp {
    uint32_t run, stream;
    uint64_t sequence, due_ns;
} ld_stamp;
_Static_assert(sizeof(ld_stamp) == LD_STAMP_BYTES, "a stamp has no padding");

typedef struct ld_buffer { /* bytes from `start` to `end` are in use */
    uint8_t *at;
    uint32_t start, end, capacity;
} ld_buffer;

typedef struct ld_list { /* of client numbers */
    uint32_t *at, count, capacity;
} ld_list;

typedef struct ld_topic {
    uint64_t name_at;
    uint64_t sequence[3]; /* next, by QoS */
    uint32_t publisher;   /* client */
    uint16_t name_length;
} ld_topic;

typedef struct ld_tracker { /* one stream in one group: a window of received
                               messages */
    uint64_t next;          /* one above the highest received sequence number */
    uint64_t seen[];        /* one bit each, group->words words, a circular buffer */
} ld_tracker;

typedef struct ld_group {
    ld_tally tally;
    ld_tracker **trackers; /* by stream; allocated on first use */
    uint32_t words;        /* a power of two */
} ld_group;

typedef struct ld_flight { /* a packet identifier in use */
    uint64_t sent_ns;
    uint8_t waits_for; /* type of the next packet of the exchange; 0: free */
} ld_flight;

typedef struct ld_client {
    int fd;
    ld_state state;
    uint32_t interest; /* events registered with epoll */
    uint32_t group;
    uint64_t hello_at, subscribe_at; /* in run->frames */
    uint32_t hello_length, subscribe_length, subacks;
    uint64_t begun_ns;
    ld_buffer out, rest;
    bool is_ready, is_starved, is_blocked, pinged; /* blocked: the socket's buffer is full */
    /* publishers */
    uint32_t topic_first, topic_count, topic_next, fan, turn; /* turn: number among the publishers */
    uint32_t pattern_next;
    uint64_t sent, due, delivered;
    ld_flight *flights; /* by packet identifier, from 1 */
    uint16_t *free;     /* circular buffer of unused identifiers */
    uint32_t window, free_first, free_count;
} ld_client;

struct ld_run {
    ld_settings settings;
    ld_counters counters;
    int phase, epoll, timer;
    uint64_t now_ns, start_ns; /* start: message 0 of the schedule */
    uint64_t sent_ns;          /* last message */
    uint64_t delivered_ns;     /* last delivery, or end of a stall */
    ld_client *clients;
    uint32_t client_count, client_capacity, connect_next, connecting;
    uint32_t settled, gone; /* clients that are connected and subscribed; that have ended */
    ld_topic *topics;
    uint32_t topic_count, topic_capacity, topic_longest;
    ld_group *groups;
    uint32_t group_count;
    ld_list publishers, ready, working, starved;
    uint64_t scheduled; /* messages due so far */
    uint32_t finished;  /* publishers that have sent messages_max or have ended */
    uint32_t pings;     /* PINGRESP packets not yet received */
    uint64_t random;
    uint64_t acked_in_all, sent_with_id;
    uint8_t *frames, *names, *receive;
    uint64_t frames_length, frames_capacity, names_length, names_capacity;
    uint32_t receive_capacity, out_chunk;
    uint8_t address[128]; /* a sockaddr */
    uint32_t address_length;
    uint64_t histograms[3][LD_BUCKETS + 2];
};

static inline uint16_t ld_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

/* Read a Variable Byte Integer.  Returns its length; 0: incomplete; -1: invalid. */
static inline int ld_varint(const uint8_t *at, uint32_t length, uint32_t *value)
{
    *value = 0;
    for (uint32_t i = 0; i < 4; i++) {
        if (i == length)
            return 0;
        *value |= (uint32_t)(at[i] & 127) << 7 * i;
        if (!(at[i] & 128))
            return (int)i + 1;
    }
    return -1;
}

/* Position behind the properties at `at`; 0: invalid or incomplete. */
static inline uint32_t ld_properties_end(const uint8_t *bytes, uint32_t at, uint32_t length)
{
    uint32_t properties;
    int taken = at <= length ? ld_varint(bytes + at, length - at, &properties) : 0;
    if (taken <= 0 || properties > length - at - (uint32_t)taken)
        return 0;
    return at + (uint32_t)taken + properties;
}

static inline uint8_t *ld_varint_put(uint8_t *to, uint32_t value)
{
    for (; value > 127; value >>= 7)
        *to++ = (uint8_t)(value | 128);
    *to++ = (uint8_t)value;
    return to;
}

/* load.c */
bool ld_room(ld_buffer *buffer, uint32_t more); /* false: no memory */
bool ld_put(ld_buffer *buffer, const void *bytes, uint32_t length);
bool ld_list_add(ld_list *list, uint32_t number);
void ld_record(ld_run *run, uint32_t which, uint64_t value_ns);
bool ld_window_make(ld_run *run, ld_client *client, uint32_t receive_max);
void ld_fail(ld_run *run, int kind, int64_t detail);

/* load_out.c */
bool ld_may_send(const ld_run *run, const ld_client *client);
void ld_fill(ld_run *run, ld_client *client);
void ld_ready(ld_run *run, ld_client *client);
void ld_starve(ld_run *run, ld_client *client);

/* load_in.c: handle all packets of `length` bytes.  Returns the bytes used; -1: the connection must be
 * closed, and the cause was counted. */
int64_t ld_packets(ld_run *run, ld_client *client, const uint8_t *bytes, uint32_t length);

/* load_loop.c */
int ld_loop_open(ld_run *run);
void ld_loop_close(ld_run *run);

#endif
