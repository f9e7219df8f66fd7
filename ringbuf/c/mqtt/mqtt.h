/* SPDX-License-Identifier: Apache-2.0
 *
 * MQTT in C: what happens once a message.  Python decides, once a client, a subscription or a topic.
 *
 *   connection.c  bytes -> packets.  Stops at whatever is not PUBLISH, an acknowledgement or a ping, and at
 *                 a topic that is unknown or not judged, and leaves exactly that as an event for Python
 *   input.c       the memory of packets that are not whole
 *   publish.c     PUBLISH -> record; with verdicts.c, acks.c, rate.c, properties.c, utf8.c: see packets.h
 *   topics.c      names -> topics; the rings that their records go to or come from
 *   routes.c      which sessions a record of a topic goes to
 *   grants.c      sets of subscription identifiers, which routes and queue entries name by number
 *   share.c       shared subscriptions: which member of a group gets a record
 *   retained.c    the last message of a topic, kept outside any ring
 *   replay.c      retained messages for who has subscribed
 *   purge.c       taking back what waits and may not be sent any more
 *   queue.c       queues of positions
 *   levels.c      durability: what waits for the log or for a sink
 *   spill.c       copies of records that rings are about to overwrite; spill_file.c, spill_index.c and
 *                 spill_compact.c  the file that they are in
 *   cold.c        records that come back from the log
 *   journal.c     what a restart must know of sessions; journal_replay.c  the restart
 *   vows.c        what waits until the journal's log has synced that
 *   session.c     windows of what is in flight, identifiers received
 *   deliver.c     what a connection is sent next
 *   frame.c       a position -> a PUBLISH frame in a connection's output
 *   aliases.c     topic aliases of those frames
 *   owners.c      how much of each table counts for one user or address
 *   slab.c        items that never move, and their handles
 *   events.c      what Python is asked, and that it receives it
 *   watch.c       whether the polling thread is alive, and clients are served
 *   engine.c      memory, rings, sources, time
 *   loop.c        sockets.  With spill_file.c and watch.c the only file here that makes system calls
 *   peer.c        addresses of clients
 *   engine_calls.c  the Python type Engine
 *
 * One thread at a time uses an engine and its loop: the thread that polls.  Nothing here calls Python.
 *
 * Ownership.  The engine owns topics, sessions, connections and blobs, all in slabs whose items never move
 * and whose addresses stay theirs, so a pointer to one is always memory of its kind; a handle or a route also
 * carries the generation, by which a stale one is known.  Rings belong to their Python objects, which
 * engine_calls.c keeps alive.  A queue holds positions, never payloads: what a position names may be
 * overwritten meanwhile.  Of QoS 1 and 2 it is copied out before that (spill.c) or read back from the log
 * afterwards (cold.c), as far as the limits go; the rest is counted as dropped.
 */
#ifndef BRIM_MQTT_H
#define BRIM_MQTT_H

#include <string.h>

#include "ring.h"

#include "levels.h"
#include "mqtt_api.h"

#define MQ_BLOCK_BYTES 65536u       /* a connection's output, while it has much */
#define MQ_SMALL_BYTES 256u         /* and while it has little: an acknowledgement, one message */
#define MQ_CARRY_BYTES 65536u       /* longest rest of a packet that is carried over in the shared buffer */
#define MQ_INPUT_MIN 4096u          /* of a packet that is not whole, a connection may always have so much */
#define MQ_READ_BYTES (256u * 1024) /* most that is read from one connection before the others' turn */
/* Packets and deliveries that one connection causes before the others' turn. */
#define MQ_TURN_WORK 8192u
#define MQ_LAG_WORK 64u /* while some connections were not flushed in this round */
#define MQ_FLUSH_BYTES (512u * 1024)   /* most that is sent to one connection before the others' turn */
#define MQ_OUT_MAX_BYTES (256u * 1024) /* unsent acknowledgements beyond which a client is no longer read */
#define MQ_EVENTS 32       /* most that Python decides about before messages have their turn again */
#define MQ_WINDOW_MIN 32   /* entries of the smallest window, which is kept when empty */
#define MQ_RECEIVED_FEW 8  /* QoS 2 identifiers of a client that take no memory of their own */
#define MQ_ENTRY_BYTES 15u /* in a queue */
#define MQ_CHUNK_MIN_BYTES 512u
#define MQ_CHUNK_MAX_BYTES 4096u
#define MQ_ALLOCATOR_BYTES 8u /* what malloc() adds to each */
#define MQ_CHUNK_ROOM(bytes) \
    (uint16_t)(((bytes)-MQ_ALLOCATOR_BYTES - offsetof(mq_chunk, entries) - 1) / MQ_ENTRY_BYTES)
#define MQ_VERDICTS_MAX 65536   /* topics judged for one connection; beyond, it begins anew */
#define MQ_ALIASES_OUT_MAX 128u /* topic aliases towards one client, however many it takes */
#define MQ_NEVER UINT64_MAX

#include "slab.h"

/* ---- what a session has ---- */

/* One record on its way to one session; in a queue 15 bytes (queue.c). */
typedef struct mq_entry {
    uint64_t where; /* source in the upper 12 bits; position / 32 below; for source 0 the address of a blob */
    uint32_t topic; /* index; what a foreign record must still say it is for */
    uint32_t tag;   /* MQ_TAG_* */
} mq_entry;

#define MQ_SOURCE_SHIFT 52
#define MQ_NOWHERE UINT64_MAX /* acknowledged, or only its identifier is still in use; in a queue: gone */

typedef struct mq_chunk mq_chunk;
struct mq_chunk { /* part of a queue: queue.c */
    mq_chunk *next;
    uint32_t sources;     /* whose records it may need, a bit each, modulo 32 */
    uint16_t room, bytes; /* in entries; in units of MQ_CHUNK_MIN_BYTES, with what the allocator adds */
    uint8_t entries[];
};

typedef struct mq_walk { /* over a queue, oldest first; zeros to begin */
    mq_chunk *chunk;
    uint8_t *at; /* the entry, for mq_entry_at() and mq_entry_move() */
} mq_walk;

typedef struct mq_owner mq_owner;
typedef struct mq_author mq_author;

/* A message kept outside any ring: a retained one, or one that its ring has overwritten (spill.c, cold.c).
 * Counted by its topic, if that retains it, and by each entry that points to it.
 */
typedef struct mq_blob {
    uint32_t references;
    uint32_t bytes : 29;
    uint32_t withheld : 1; /* its author may not publish to its topic now: no client gets it */
    uint32_t spilled : 1;  /* counted in spilled_bytes */
    uint32_t reserved : 1; /* of a topic of the server's own: in no counter */
    union {
        uint64_t publisher; /* retained: session that published it, for no-local; 0: none */
        uint64_t moved_to;  /* spilled: address of the same elsewhere, for which this one counts; 0: none */
    };
    uint64_t origin;  /* where its record stood in a ring; 0: in none */
    mq_author *author; /* of a retained one; NULL: not known */
    rb_record record; /* with key and payload behind it, as in a ring; its checksum may not hold */
} mq_blob;

typedef struct mq_connection mq_connection;
typedef struct mq_session mq_session;
typedef struct mq_source mq_source;

/* A message on its way into a ring. */
typedef struct mq_message {
    const void *payload;
    const void *properties; /* MQTT 5, as a record has them, their length in front; NULL: none */
    uint32_t payload_length, properties_length;
    uint32_t flags;              /* RB_FLAG_*; PROPERTIES and EXPIRY as `properties` says */
    uint64_t timestamp_ns;       /* 0: now */
    const mq_session *publisher; /* NULL: not a client */
    mq_owner *owner;             /* what it retains counts for; of a client, its session's.  NULL: none */
    mq_author *author;           /* likewise */
} mq_message;

typedef struct mq_member { /* of a group */
    mq_session *session;
    uint32_t generation, tag; /* the grant in its tag names the group */
} mq_member;

typedef struct mq_group { /* of a shared subscription: share.c */
    mq_member *members;
    uint32_t count, room, next; /* next: whose turn it is */
    mq_session *again;          /* what was taken back from members, served first; NULL: nothing yet */
} mq_group;

typedef struct mq_replay mq_replay;
struct mq_replay { /* of what is retained: replay.c */
    mq_replay *next;
    uint32_t *topics;   /* NULL: all that the filter matches */
    uint32_t at, count; /* the next, in `topics` or in the table; how many there are */
    uint64_t until;     /* retained messages with a higher number reach the session by themselves */
    uint32_t tag, filter_length;
    char filter[];
};

struct mq_session {
    mq_item item;
    bool dirty; /* something was queued since its connection was last touched for it */
    bool drop_newest;
    bool watched;              /* in engine->watched: it may need records that a ring will overwrite */
    bool disordered;           /* positions of a ring do not only rise in its queue or window */
    bool cold;                 /* its delivery waits for records from the log */
    bool shared;               /* it was a member of a group */
    bool kept;                 /* the journal has what happens to it */
    mq_connection *connection; /* NULL: away */
    uint8_t *queue_in;         /* in `back`: where the next entry goes */
    uint32_t queue_left;       /* so many may be pushed before anything is looked at */
    uint32_t queue_count, queue_max;
    uint8_t *queue_out;     /* in `front`: the oldest entry */
    mq_chunk *front, *back; /* NULL until something is queued */
    mq_chunk *hot;          /* the first that may need records of a ring: those before have been seen to */
    mq_entry *sent; /* in flight: number n is at n & (sent_room - 1), its identifier is n % 65535 + 1 */
    uint64_t sent_first, sent_next,
        resend; /* numbers; resend..sent_next is to be sent again after a reconnect */
    uint32_t *sent_bytes; /* of those in flight, where in_flight_max_bytes is set; else NULL */
    uint64_t in_flight_bytes;
    uint32_t sent_room, in_flight, window;
    uint32_t unsent;   /* of those in flight: not sent on this connection yet, numbers from `resend` on */
    uint8_t *received; /* QoS 2 identifiers that PUBREL has not freed yet: 8 KiB of bits; NULL: few */
    uint32_t received_count; /* of them */
    uint16_t received_few[MQ_RECEIVED_FEW];
    mq_replay *replays; /* of the retained messages it is still to be sent */
    mq_group *group;    /* whose queue this is, and no client's; NULL: a client's */
    mq_list shares;     /* the groups it is a member of: handles of their queues */
    uint32_t share_turn;
    mq_owner *owner;                    /* NULL: none */
    mq_author *author;                  /* its client; NULL: not known */
    bool lasts;                         /* it outlasts its connection: counted in sessions_kept */
    uint64_t filter_bytes, queue_bytes; /* that count for its owner */
    uint64_t delivered;
    uint64_t dropped[MQ_DROP_CAUSES];
};

#include "topic.h"

/* ---- connections ---- */

typedef enum mq_stop { /* why a connection is not parsed further */
    MQ_RUN = 0,
    MQ_STOP_PYTHON, /* an event of it is Python's; goes on at the next poll */
    MQ_STOP_HELD,   /* Python will say when */
    MQ_STOP_FULL,   /* its ring has no room */
    MQ_STOP_ACKS,   /* too many acknowledgements wait for the disk */
    MQ_STOP_OUT,    /* it does not read what we answer */
    MQ_STOP_RATE,   /* it publishes faster than its listener allows */
    MQ_STOP_INPUT,  /* unfinished packets take all their memory: input.c */
    MQ_STOP_CLOSING
} mq_stop;

typedef struct mq_ack { /* an acknowledgement that waits */
    uint64_t durable;   /* until its source has got here (levels.h); 0: only for those before it */
    uint16_t source, identifier;
    uint8_t first;  /* byte of the packet: PUBACK or PUBREC */
    uint8_t reason; /* of MQTT 5 */
} mq_ack;

typedef struct mq_verdict {
    uint32_t topic; /* index + 1; 0: free */
    uint32_t
        generation; /* the topic's, with bit 0 saying whether the client may: generations of topics are odd */
} mq_verdict;

typedef struct mq_alias { /* what a topic alias of a client stands for; all zero: nothing */
    mq_topic *topic;      /* of that name, when it was last looked up and still of that generation */
    uint8_t *name;
    uint32_t generation;
    uint16_t length;
    uint8_t reason; /* not 0: a name that Python refused for this reason, and that was not kept */
} mq_alias;

typedef struct mq_alias_out {   /* a topic alias towards the client: its place + 1 */
    uint32_t topic, generation; /* generation 0: free */
    uint32_t used;              /* when, by connection->alias_clock */
} mq_alias_out;

struct mq_connection {
    mq_item item;
    int fd;              /* -1: none, Python feeds and pulls */
    uint8_t version;     /* 0 until CONNECT was accepted, then the protocol level: 3, 4, 5 */
    uint8_t stop;        /* mq_stop */
    uint8_t cause;       /* MQ_CLOSE_*, once closing */
    bool conversing;     /* CONNECT has come, and Python asks for more: AUTH */
    bool trusted;        /* may publish to any topic that is not reserved */
    bool known;          /* Python has seen an event of it, and will see its end */
    bool judged;         /* Python's answer to a TOPIC event */
    uint8_t skip_reason; /* or this: the PUBLISH is not stored, and why; else 0 */
    bool listed;         /* in engine->touched */
    bool is_ready;       /* in engine->ready */
    bool is_holding;     /* in engine->holding */
    bool blocked;        /* the socket took less than it was given; EPOLLOUT will say when to go on */
    bool last_allowed;
    bool pinged;    /* in this turn */
    bool vows;      /* what is behind `vowed` rests on entries of the journal: vows.c */
    bool is_vowing; /* in engine->vowing */
    uint32_t vowed; /* so many bytes of `out` leave when the journal is durable up to vow_at */
    uint64_t vow_at;
    uint32_t interest; /* what epoll was told */
    uint32_t last_generation;
    mq_topic *last_topic; /* of its last PUBLISH: devices repeat themselves */
    mq_session *session;
    mq_bytes in; /* the rest of what was received, when a packet is not whole or parsing stopped */
    mq_bytes out;
    uint64_t in_since_ms;       /* when the packet at its head began, without the time in line */
    uint64_t in_waits_since_ms; /* MQ_STOP_INPUT */
    uint32_t in_promised;       /* of the rest of that packet, memory that is kept for it: input.c */
    uint32_t skip;              /* bytes at the head of `in` that Python has dealt with */
    uint32_t need; /* length of the packet that `in` begins with, if it is known and not whole; else 0 */
    uint32_t packet_max_bytes; /* of what we take */
    uint32_t send_max_bytes;   /* of what it takes; 0: anything */
    uint32_t alias_max;        /* topic aliases that we may use towards it */
    mq_alias_out *aliases_out; /* when there is one; for as long as the connection */
    uint32_t alias_clock;
    uint32_t out_chunk;                 /* how much is built at once: little for who reads slowly */
    uint64_t last_seen_ms, idle_max_ms; /* 0: no keep-alive */
    uint32_t policy;                    /* of engine->policy, when its verdicts were made */
    uint32_t verdict_count, verdict_room;
    mq_verdict *verdicts;
    mq_ack *held; /* a ring of held_room */
    uint32_t held_first, held_count, held_room;
    uint32_t unfinished; /* exchanges of QoS 1 and 2 that it began and that are not at their end */
    uint32_t alias_room;
    mq_alias *aliases;                  /* that the client has set: number n is at n - 1 */
    uint32_t publish_rate_max;          /* messages a second; 0: any */
    uint64_t rate_credit, rate_seen_ms; /* thousandths of messages it may send at once, as of then */
    mq_owner *owner;                    /* it counts for it, in the table `owned_as`; NULL: none */
    uint8_t owned_as;
    uint8_t listener;
    uint8_t address_family; /* AF_*; 0: none */
    uint16_t port;
    uint8_t address[16];
    uint64_t event; /* number of the event that it waits for, while it stops for Python */
};

typedef struct mq_request { /* that Python does something which a state of the engine needs: events.c */
    bool made;
    uint64_t made_ms;
} mq_request;

#include "journal.h"
#include "spill_file.h"

/* ---- sources: the rings ---- */

typedef enum mq_source_kind {
    MQ_SOURCE_NONE = 0,
    MQ_SOURCE_OWN,
    MQ_SOURCE_FOREIGN,
    MQ_SOURCE_PAST /* a ring, or an epoch of one, that is no more: the log has what is left, if `logged` */
} mq_source_kind;

struct mq_source {
    uint8_t kind;
    bool dirty;   /* appended to, and end not yet published */
    bool waiting; /* foreign: its next record's topic is with Python */
    bool judged;
    bool moved;    /* foreign: read further than its writer was told */
    bool bad;      /* foreign: it holds what is no record */
    bool reported; /* Python has received that it waits, or that it is bad */
    bool logged;   /* what its ring has overwritten is in the log */
    mq_level level;
    bool blocks; /* a full ring pauses the publisher, up to the queue timeout; else it is refused at once */
    uint32_t queue_timeout_ms;    /* how long a gating reader may stand in the way before it is evicted */
    uint64_t copied;              /* of the records below, those that are needed have been copied */
    uint64_t copy_at;             /* a position that is reached only after spill.c has looked */
    uint64_t refused_until_ms;    /* there was no room for copies: nothing is appended before */
    uint64_t full_since_ms;       /* 0: the last claim went in */
    uint64_t marked;              /* position of its last MARK in the journal */
    uint64_t swept;               /* what was retained below has been written down */
    uint64_t resume_at;           /* foreign: records below were routed in an earlier life */
    uint64_t held_for;            /* its log waits until the journal is durable up to here; 0: it does not */
    uint64_t next_held, next_for; /* then from next_held - 1 on until it is up to next_for; 0: it does not */
    rb_writer *writer;
    rb_reader *reader;
    uint8_t *name; /* foreign: topic that is with Python */
    uint32_t name_length;
    uint8_t ring[RB_NAME_MAX_BYTES], ring_length; /* name of the ring; its length is 0: not known */
    uint32_t epoch;                               /* of the ring */
};

typedef struct mq_event {
    uint32_t kind, detail;
    uint64_t handle;     /* of the connection; 0 for a source */
    uint32_t at, length; /* data, in connection->in or source->name */
} mq_event;

typedef struct mq_pulse { /* what the watchdog's thread reads: watch.c */
    uint64_t beat;        /* odd while the loop sleeps; it changes twice a round.  0: it has not begun */
    uint64_t waiting; /* connections that are not read, or not sent to, and only the broker can end that */
} mq_pulse;

struct mq_engine {
    mq_limits limits;
    mq_listener listeners[MQ_LISTENERS_MAX];
    mq_counters counters;
    mq_journal journal;
    mq_pulse pulse;
    mq_spill spill;
    uint64_t now_ms, now_ns; /* monotonic; wall */
    uint64_t next_deadline_ms;
    uint64_t heard_ms;   /* what clients had sent by then was read: silence of theirs is measured up to it */
    uint64_t unheard_ms; /* when the first of these rounds began */
    uint32_t unheard_rounds; /* that could not read all there was, one after the other */
    uint64_t appended_bytes; /* since outputs were last flushed */
    uint32_t policy;
    mq_slab topics, sessions, connections, grants, owners;
    uint32_t *owner_table; /* owner index + 1, by hash; chained through mq_owner.next */
    uint32_t owner_room;
    uint64_t quota_refused_to[MQ_OWNED]; /* handle of the owner that was refused last */
    uint32_t *grant_table;               /* grant index + 1, by hash; chained through mq_grant.next */
    uint32_t grant_room;
    uint64_t retained_number;                   /* of the message that was retained last */
    uint64_t replaced_bytes;                    /* of retained_bytes: no topic has them, an entry does */
    uint64_t promised_retained, promised_bytes; /* room for messages not shown yet */
    mq_list retained_changed;                   /* topics, since the last sweep has begun */
    mq_list retained_sweeping;                  /* those that it is still to give */
    bool retained_kept;                         /* it is written down */
    bool retained_due; /* a ring is about to lose records of which what is retained is not written down */
    mq_request retained_request;
    uint32_t share_queues; /* sessions that are queues of groups */
    bool lags;             /* connections are left that were not sent anything in this round */
    uint32_t turn_work;    /* of the connection that is being parsed, as MQ_TURN_WORK counts it */
    uint32_t matched;      /* subscribers of the record that was appended last */
    uint64_t *table;       /* topic index + 1 below, upper half of its hash above; open addressing */
    uint32_t table_room, clock_hand;
    uint64_t seed[2];
    mq_source *sources[MQ_SOURCES_MAX];
    uint32_t source_count;
    bool sources_pending; /* a source has more than was read */
    bool sources_moved;
    bool sources_asking;        /* perhaps a source waits for Python that has not been reported */
    bool sources_waiting;       /* perhaps a source waits for Python */
    uint32_t held_sources;      /* those of which held_for is not 0 */
    bool hides;                 /* some source does: mq_show() has something to look at */
    bool show_pending;          /* more has become durable than was shown in one turn */
    uint64_t refusal_due_ms;    /* when held acknowledgements are looked at, because a log does not work */
    mq_event events[MQ_EVENTS]; /* number n stands at n % MQ_EVENTS */
    uint64_t event_done, event_taken, event_next; /* numbers: events.c has the invariant */
    mq_list touched, ready, holding, blocked, limited, closing, published, watched, cold, vowing;
    mq_line lines[MQ_LINES]; /* connections that wait for memory: input.c */
    uint32_t starved;        /* entries of all lines */
    uint64_t in_promised;    /* to all connections */
    uint64_t starved_due_ms; /* when some are closed to make room for them */
    uint64_t limited_due_ms; /* when the first of `limited` may go on */
    mq_list passing;         /* the list that is being walked */
    mq_spares blocks, smalls;
    mq_chunk *spare_chunks;
    uint32_t spare_chunk_count;
    uint8_t *scratch; /* properties of one PUBLISH, as a record has them */
    uint32_t scratch_room;
    uint8_t *foreign; /* properties of a foreign record, MQ_READ_BYTES; NULL until there are some */
    uint32_t read_bytes; /* the part of each connection in all that is read in this round */
    uint8_t *receive; /* MQ_CARRY_BYTES + MQ_READ_BYTES, for whoever is read now */
};

/* engine.c */
mq_engine *mq_engine_new(const mq_limits *limits, const uint64_t seed[2]);
void mq_engine_free(mq_engine *engine);
void mq_list_add(mq_list *list, uint64_t handle);
void *mq_slab_take(mq_slab *slab);
void mq_slab_give(mq_slab *slab, mq_item *item);
void *mq_slab_at(const mq_slab *slab, uint32_t index);   /* NULL: never made */
void *mq_slab_get(const mq_slab *slab, uint64_t handle); /* NULL: stale */
void mq_slab_trim(mq_slab *slab); /* gives back the memory of chunks that nobody uses */
void mq_slab_free(mq_slab *slab);
bool mq_bytes_reserve(mq_engine *engine, mq_bytes *bytes, uint32_t more); /* room for `more` at the end */
void mq_bytes_free(mq_engine *engine, mq_bytes *bytes);
void mq_bytes_shrink(mq_engine *engine, mq_bytes *bytes); /* no more memory than what is left needs */
int mq_source_add(mq_engine *engine, mq_source source);
void mq_source_remove(mq_engine *engine, uint32_t source);
void mq_end_publish(mq_engine *engine); /* ends of all rings that were appended to */

/* What needs no socket, before and after sockets are served: connections whose events Python has handled,
 * held acknowledgements, paused publishers, source rings, deadlines. */
void mq_engine_step(mq_engine *engine);
void mq_heard(mq_engine *engine, uint64_t began_ms, bool all);
void mq_counters_refresh(mq_engine *engine);
/* Milliseconds until mq_engine_step() is due for its own sake; 0: now; UINT64_MAX: never. */
uint64_t mq_engine_due(const mq_engine *engine);

mq_connection *mq_connection_open(mq_engine *engine, int fd, int listener);
void mq_connection_close(mq_engine *engine, mq_connection *connection, uint32_t cause);
void mq_connection_forget(mq_engine *engine, mq_connection *connection); /* frees it; the socket is closed */
bool mq_connection_over(mq_engine *engine,
                        mq_connection *connection); /* leaves the CLOSED event; false: no room */
void mq_connection_touch(mq_engine *engine, mq_connection *connection); /* it has something to send */
/* Connections of `walked` (engine->touched before) from `first` on stand before those touched meanwhile. */
void mq_touched_first(mq_engine *engine, mq_list *walked, uint32_t first);
void mq_connection_ready(mq_engine *engine, mq_connection *connection); /* parse on what it left */
/* What CONNECT has settled. */
typedef struct mq_terms {
    uint64_t idle_max_ms;    /* 0: no keep-alive */
    uint32_t window;         /* QoS 1 and 2 messages in flight to it */
    uint32_t send_max_bytes; /* longest packet it takes; 0: any */
    uint32_t alias_max;      /* topic aliases that we may use towards it */
    uint8_t version;         /* protocol level: 3, 4, 5 */
    bool trusted;            /* may publish to any topic that is not reserved */
} mq_terms;
void mq_connection_attach(mq_engine *engine, mq_connection *connection, mq_session *session,
                          const mq_terms *terms);

/* events.c */
bool mq_event_add(mq_engine *engine, uint32_t kind, uint32_t detail, uint64_t handle, uint32_t at,
                  uint32_t length); /* false: there is no room */
/* Gives the next event to Python; false: that was all.  *source is 0 before the first call. */
/* The next event; of those that are queued only such as have a number below `end`. */
bool mq_event_take(mq_engine *engine, uint64_t end, uint32_t *source, mq_event *out);
uint32_t mq_events_waiting(const mq_engine *engine); /* about how many mq_event_take() gives now */
void mq_events_resume(mq_engine *engine);            /* of those that were taken, and of no others */
void mq_request_made(const mq_engine *engine, mq_request *request);
uint64_t mq_requests_due_ms(const mq_engine *engine); /* when one is to be made, or made again */
static inline bool mq_events_full(const mq_engine *engine)
{
    return engine->event_next - engine->event_done == MQ_EVENTS;
}

/* watch.c */
void mq_pulse_beat(mq_engine *engine);
void mq_pulse_waiting(mq_engine *engine, uint64_t connections);

/* input.c */
uint8_t *mq_receive_room(mq_engine *engine, mq_connection *connection, uint32_t *room);
void mq_input_keep(mq_engine *engine, mq_connection *connection, const uint8_t *bytes, uint32_t length);
void mq_input_free(mq_engine *engine, mq_connection *connection);
/* `bytes` of what it was promised have come, or UINT32_MAX: it needs no more. */
void mq_input_promised(mq_engine *engine, mq_connection *connection, uint32_t bytes);
void mq_input_begins(mq_engine *engine, mq_connection *connection); /* another packet is at the head */
void mq_input_step(mq_engine *engine);
uint64_t mq_input_due_ms(const mq_engine *engine); /* MQ_NEVER: no connection waits */

/* connection.c */
void mq_received(mq_engine *engine, mq_connection *connection, uint32_t count);
void mq_continue(mq_engine *engine, mq_connection *connection);
bool mq_put(mq_engine *engine, mq_connection *connection, const void *bytes, uint32_t length);
/* DISCONNECT, where the client is told why: behind what waits to be sent. */
void mq_farewell(mq_engine *engine, mq_connection *connection, uint32_t cause);

/* verdicts.c */
void mq_judge(mq_engine *engine, mq_connection *connection, const mq_topic *topic, bool allowed);
void mq_aliases_free(mq_connection *connection);

/* rate.c */
void mq_rate_begin(const mq_engine *engine, mq_connection *connection); /* CONNECT was accepted */

/* acks.c */
void mq_held_release(mq_engine *engine);

#include "owners.h"
#include "topics.h"

/* queue.c */
bool mq_queue_make_room(mq_engine *engine, mq_session *session); /* false: what was to be queued is dropped */
mq_entry mq_queue_pop(mq_engine *engine, mq_session *session);   /* its reference passes to the caller */
bool mq_queue_next(const mq_session *session, mq_walk *walk);    /* false: that was the last */
/* Takes out each entry, oldest first, for which `take` says so; its reference passes to `take`, which leaves
 * this queue alone.  Needs no memory. */
void mq_queue_sift(mq_engine *engine, mq_session *session, bool (*take)(mq_engine *, const mq_entry *));
void mq_queue_clear(mq_engine *engine, mq_session *session);
void mq_spare_chunks_free(mq_engine *engine);

/* vows.c */
void mq_vow(mq_engine *engine, mq_connection *connection); /* what it is told next rests on the journal */
uint32_t mq_may_leave(mq_engine *engine, mq_connection *connection); /* so many bytes of its output, now */
void mq_has_left(mq_connection *connection, uint32_t bytes);
/* The next record of `source` rests on what the journal has by now. */
void mq_hold_record(mq_engine *engine, mq_source *source);
void mq_vows_look(mq_engine *engine); /* the journal's log has synced, perhaps, or the journal is closed */

/* cold.c */
void mq_cold_ask(mq_engine *engine, mq_session *session); /* the next record for it is in the log only */
bool mq_is_cold(const mq_engine *engine, const mq_entry *entry);
bool mq_cold_front(const mq_engine *engine, const mq_session *session, uint64_t *where);
void mq_thaw(mq_engine *engine, mq_session *session, uint64_t wanted, uint64_t position, const uint8_t *bytes,
             uint64_t length);
void mq_warm(mq_engine *engine, mq_session *session);

/* session.c */
void mq_session_clear(mq_engine *engine, mq_session *session);
void mq_session_forget_source(mq_engine *engine, mq_session *session, uint32_t source);
void mq_session_return(mq_session *session); /* a connection was attached: redeliver */
void mq_entry_drop(mq_engine *engine, mq_session *session, const mq_entry *entry, uint32_t cause);
void mq_entry_done(mq_engine *engine, const mq_entry *entry); /* it counts for its blob and grant no longer */
mq_entry *mq_sent_add(mq_engine *engine, mq_session *session, uint16_t *identifier); /* NULL: no memory */
/* An entry in flight takes so many bytes, if that was not known. */
void mq_sent_measured(mq_session *session, const mq_entry *entry, uint32_t bytes);
mq_entry *mq_sent_find(mq_session *session, uint16_t identifier); /* NULL: not in flight */
void mq_sent_done(mq_engine *engine, mq_session *session, mq_entry *entry);
bool mq_received_mark(mq_session *session, uint16_t identifier, bool *again); /* false: no memory */
bool mq_received_has(const mq_session *session, uint16_t identifier);
bool mq_received_free(mq_session *session, uint16_t identifier); /* false: it was free */

/* frame.c */
/* Whether the Message Expiry Interval of a record in our own memory has passed. */
bool mq_is_expired(const mq_engine *engine, const rb_record *record);

/* deliver.c */
/* Builds frames into the connection's output, up to what is sensible to send at once.  True: there is more.
 */
bool mq_fill(mq_engine *engine, mq_connection *connection);

#include "queue.h"

#endif
