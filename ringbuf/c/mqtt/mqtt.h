/* SPDX-License-Identifier: Apache-2.0
 *
 * MQTT in C: work that is done once per message.  Python does the work per client, subscription or topic.
 *
 *   parser.c                parser: bytes -> packets.  Stops at each packet other than PUBLISH,
 *                           acknowledgements and pings, and at a topic that is unknown or not yet
 *                           authorized; queues that packet as an event for Python
 *   input.c                 memory of incomplete packets
 *   publish.c               PUBLISH -> record; with acl_cache.c, acks.c, rate_limit.c, properties.c, utf8.c:
 *                           see packets.h
 *   topics.c                topic table: names -> topics
 *   new_topics.c            topics that clients use for the first time, by rules of Python
 *   streams.c               partition of a topic, by the filters of streams
 *   trie.c                  trie of the levels of names and filters
 *   match_topics.c          known topics that a filter matches
 *   subscriptions.c         filters -> subscriptions; match_filters.c: those that match a name
 *   merge_routes.c          routes of a new topic by its match
 *   append.c                append of a message to the ring of its topic
 *   producer_rings.c        reading of rings that other processes write
 *   routes.c                routes: the sessions that a record of a topic goes to
 *   subscription_ids.c      numbered sets of subscription identifiers, for routes and queue entries
 *   shared_subscriptions.c  shared subscriptions: selects the group member that gets a record
 *   retained.c              retained messages, kept outside any ring
 *   retained_delivery.c     delivery of retained messages to new subscriptions
 *   purge.c                 removal of queued messages that the session may not receive any more
 *   queue.c                 queues of positions
 *   ack_gate.c, receipts.c  durability: acknowledgements and QoS 2 messages that wait for the log or a sink
 *   spill.c                 copies of records that rings are about to overwrite; spill_file.c, spill_index.c
 *                           and spill_compact.c: the file with these copies
 *   log_backfill.c          backfill of records from the log
 *   journal.c               journal of session state for a restart; journal_replay.c: the restart
 *   output_barrier.c        output barrier: output that waits until the journal's log has synced
 *   inflight.c              in-flight windows; received_ids.c: identifiers received with QoS 2
 *   output.c                output of acknowledgements and other packets of the server
 *   deliver.c               delivery: selects the next messages for a connection
 *   frame.c                 a position -> a PUBLISH frame in a connection's output
 *   topic_aliases.c         topic aliases of those frames (out/), and of a client's PUBLISHes (in/)
 *   quotas.c                use of each shared table per user or address
 *   tenants.c               name spaces of clients, and their use of each shared table
 *   slab.c                  items that never move, and their handles
 *   lists.c                 queues of linked items, and arrays of numbers
 *   table.c                 hash tables that grow and shrink in small steps
 *   events.c                events for Python, and requests with retries
 *   watchdog.c              watchdog: checks that the polling thread runs and that clients are served
 *   engine.c                memory, table of rings, time
 *   record_age.c            ages of records, also after a step of the wall clock
 *   keep_alive.c            end of silent connections
 *   event_loop.c            sockets; accept.c: new ones; linger.c: ended ones.  Only these files, transport/,
 *                           spill_file.c and watchdog.c make system calls
 *   transport/              layers between a socket and the parser
 *   peer.c                  addresses of clients
 *   py_engine.c             the Python type Engine
 *
 * Only one thread at a time uses an engine and its loop: the polling thread.  These files never call Python.
 *
 * Ownership.  The engine owns topics, sessions, connections and blobs.  All are in slabs whose items never
 * move and keep their addresses, so a pointer to one always points to memory of its type.  A handle or a
 * route also has the generation, which identifies a stale one.  Rings belong to their Python objects, which
 * py_engine.c keeps alive.
 *
 * A queue holds positions, never payloads.  A ring may overwrite the record at a position.  A record of QoS 1
 * or 2 is copied out before that (spill.c) or read back from the log later (log_backfill.c), within the
 * limits. Other overwritten records are counted as dropped. */
#ifndef BRIM_MQTT_H
#define BRIM_MQTT_H

#include <string.h>

#include "ring/ring.h"

#include "mqtt/durable/ack_gate.h"
#include "mqtt/lists.h"
#include "mqtt/mqtt_api.h"

#define MQ_BLOCK_BYTES 65536u       /* output buffer of a connection with much output */
#define MQ_SMALL_BYTES 256u         /* output buffer for little output: an acknowledgement, one message */
#define MQ_CARRY_BYTES 65536u       /* longest rest of a packet that stays in the shared buffer */
#define MQ_INPUT_MIN 4096u          /* input memory that each connection may always use */
#define MQ_READ_BYTES (256u * 1024) /* most bytes read from one connection in its turn */
#define MQ_TURN_WORK 8192u /* packets and deliveries that one connection may cause in its turn */
#define MQ_ROUND_WORK 32768u /* of it, that the connections of a round share: about 2 ms */
#define MQ_LAG_WORK 64u /* limit while some connections are not yet flushed in this round */
#define MQ_FLUSH_BYTES (512u * 1024)   /* most bytes sent to one connection in its turn */
#define MQ_OUT_MAX_BYTES (256u * 1024) /* unsent acknowledgements that pause reading from a client */
#define MQ_EVENTS 32       /* events per turn of Python, before messages are served again */
#define MQ_EVENTS_SPARE 8u /* of these for accepted clients only, and as many for others only */
#define MQ_MEMORY_FIFOS 3         /* of connections that wait for input memory: input.c */
#define MQ_WINDOW_MIN 32   /* entries of the smallest window, which is kept when empty */
#define MQ_RECEIVED_FEW 8  /* QoS 2 identifiers of a client that need no extra memory */
#define MQ_ENTRY_BYTES 15u /* size of a queue entry */
#define MQ_CHUNK_MIN_BYTES 512u
#define MQ_CHUNK_MAX_BYTES 4096u
#define MQ_ALLOCATOR_BYTES 8u /* overhead of malloc() per chunk */
#define MQ_CHUNK_CAPACITY(bytes) \
    (uint16_t)(((bytes)-MQ_ALLOCATOR_BYTES - offsetof(mq_chunk, entries) - 1) / MQ_ENTRY_BYTES)
#define MQ_ACL_CACHE_MAX 65536 /* cached topics per connection; a full cache is cleared */
#define MQ_ALIASES_OUT_MAX 128u /* topic aliases towards one client, even if it accepts more */
#define MQ_NEVER UINT64_MAX

typedef struct mq_engine mq_engine;
typedef struct mq_topic mq_topic;
#include "mqtt/route/match_filters.h"
#include "mqtt/route/streams.h"
#include "mqtt/route/subscriptions.h"

/* ---- session state ---- */

/* A record queued for or in flight to one session; 15 bytes in a queue (queue.c). */
typedef struct mq_entry {
    uint64_t where; /* ring in the upper 12 bits; position / 32 below; for ring 0 the address of a blob */
    uint32_t topic; /* index of the topic; the key of a producer's record must still match it */
    uint32_t options;   /* MQ_OPTION_*: options, state and number of subscription ids */
} mq_entry;

#define MQ_RING_SHIFT 52
#define MQ_NOWHERE UINT64_MAX /* acknowledged, or only the identifier is in use; in a queue: removed */

typedef struct mq_chunk mq_chunk;
struct mq_chunk { /* part of a queue: queue.c */
    mq_chunk *next;
    uint32_t rings;       /* rings of its records: one bit each, modulo 32 */
    uint16_t capacity, bytes; /* in entries; in units of MQ_CHUNK_MIN_BYTES, with overhead */
    uint8_t entries[];
};

typedef struct mq_walk { /* iterator over a queue, oldest first; zeros to begin */
    mq_chunk *chunk;
    uint8_t *at; /* current entry, for mq_entry_at() and mq_entry_move() */
} mq_walk;

typedef struct mq_owner mq_owner;
typedef struct mq_author mq_author;
typedef struct mq_tenant mq_tenant;

/* A message kept outside any ring: a retained message, or a record that its ring has overwritten (spill.c,
 * log_backfill.c).  References are counted for the topic that retains it and for each entry that points to
 * it.
 */
typedef struct mq_blob {
    uint32_t references;
    uint32_t bytes : 29;
    uint32_t withheld : 1; /* its author may not publish to the topic now: not delivered */
    uint32_t spilled : 1;  /* counted in spilled_bytes */
    uint32_t reserved : 1; /* of a topic of the server: in no counter */
    union {
        uint64_t publisher; /* retained: session that published it, for no-local; 0: none */
        uint64_t moved_to;  /* spilled: address of its moved copy, which this one references; 0: none */
    };
    uint64_t origin;  /* `where` of its record in a ring; 0: no ring */
    mq_author *author; /* publisher of a retained message; NULL: not known */
    rb_record record; /* followed by key and payload, as in a ring; its checksum may be wrong */
} mq_blob;

typedef struct mq_connection mq_connection;
typedef struct mq_layer mq_layer; /* transport/layer.h */
typedef struct mq_session mq_session;
typedef struct mq_ring mq_ring;

/* Input of mq_append(): a message that is to be written to a ring. */
typedef struct mq_message {
    const void *payload;
    const void *properties; /* MQTT 5, as in a record, with their length first; NULL: none */
    uint32_t payload_length, properties_length;
    uint32_t flags;              /* RB_FLAG_*; PROPERTIES and EXPIRY match `properties` */
    uint64_t timestamp_ns;       /* 0: now */
    const mq_session *publisher; /* NULL: not a client */
    mq_owner *owner;             /* charged for the retained message; the session's owner.  NULL: none */
    mq_author *author;           /* publisher of the retained message; NULL: not known */
} mq_message;

typedef struct mq_member { /* of a group */
    mq_session *session;
    uint32_t generation, options; /* the subscription ids in its options identify the group */
} mq_member;

typedef struct mq_group { /* of a shared subscription: shared_subscriptions.c */
    mq_member *members;
    uint32_t count, capacity, next; /* next: index of the next member in turn */
    mq_session *returned;       /* queue of records taken back from members, served first; NULL: none yet */
} mq_group;

typedef struct mq_retained_delivery mq_retained_delivery;
struct mq_retained_delivery { /* delivery of retained messages: retained_delivery.c */
    mq_retained_delivery *next;
    uint32_t *topics;   /* NULL: all topics that the filter matches */
    uint32_t at, count; /* index of the next, in `topics` or in the table; number of them */
    uint64_t until;     /* retained messages with a higher number are routed to the session */
    uint32_t options, filter_length;
    char filter[];
};

struct mq_session {
    mq_item item;
    bool needs_delivery;  /* entries were queued since its connection was last served */
    bool drop_newest;
    bool disordered;           /* positions of a ring may fall in its queue or window */
    bool waits_for_log;        /* delivery waits for records from the log */
    bool shared;               /* was a member of a shared subscription */
    bool kept;                 /* its state is written to the journal */
    bool receives_all;         /* rules deny it no topic, except reserved ones: new_topics.c */
    mq_connection *connection; /* NULL: disconnected */
    uint8_t *queue_in;         /* in `back`: place of the next entry */
    uint32_t queue_left;       /* entries that may be pushed without a check */
    uint32_t queue_count, queue_max;
    mq_link needing_copies; /* in engine->copy_sessions: of records that a ring will overwrite */
    uint8_t *queue_out;     /* in `front`: the oldest entry */
    mq_chunk *front, *back; /* NULL until an entry is queued */
    mq_chunk *hot;          /* first that may need records of a ring; earlier ones are done */
    mq_entry *sent; /* in flight: number n is at n & (sent_capacity - 1), with identifier n % 65535 + 1 */
    uint64_t sent_first, sent_next,
        resend; /* numbers; resend..sent_next must be sent again after a reconnect */
    uint32_t *sent_bytes; /* sizes of entries in flight if in_flight_max_bytes is set, or NULL */
    uint64_t in_flight_bytes;
    uint32_t sent_capacity, in_flight, window;
    uint32_t unsent;   /* entries in flight, from `resend` on, not yet sent on this connection */
    uint8_t *received; /* QoS 2 identifiers not yet freed by PUBREL: 8 KiB of bits; NULL: few */
    uint32_t received_count; /* number of these identifiers */
    uint16_t received_few[MQ_RECEIVED_FEW];
    mq_receipts *receipts; /* of those whose record the sinks may not have; NULL: none */
    mq_retained_delivery *retained_deliveries; /* retained messages that must still be sent */
    mq_group *group;    /* group whose queue this is; NULL: the session of a client */
    mq_list shares;     /* its groups: handles of their queues */
    uint32_t share_turn;
    mq_owner *owner;                    /* NULL: none */
    mq_author *author;                  /* its client, for retained messages; NULL: not known */
    bool lasts;                         /* outlasts its connection: counted in sessions_kept */
    uint64_t filter_bytes, queue_bytes; /* charged to its owner */
    uint64_t match_number; /* of the latest match that found it; `matched`: its first entry there */
    uint32_t matched;
    uint64_t delivered;
    uint64_t dropped[MQ_DROP_CAUSES];
};

#include "mqtt/route/topic_types.h"

/* ---- connections ---- */

typedef struct mq_rate { /* bucket of messages: rate_limit.c */
    uint32_t rate_max;        /* messages per second; 0: any */
    uint64_t credit, seen_ms; /* messages that may be sent at once, in thousandths, at that time */
} mq_rate;

typedef enum mq_stop { /* reason why parsing of a connection has stopped */
    MQ_RUN = 0,
    MQ_STOP_PYTHON, /* an event is with Python; continues at the next poll */
    MQ_STOP_DEFERRED, /* waits for an answer that Python got later */
    MQ_STOP_FULL,   /* its ring has no room */
    MQ_STOP_ACKS,   /* too many acknowledgements wait for a sync or a sink */
    MQ_STOP_OUT,    /* the client does not read its output */
    MQ_STOP_RATE,   /* the client publishes faster than its listener allows */
    MQ_STOP_INPUT,  /* incomplete packets use all memory for them: input.c */
    MQ_STOP_CLOSING
} mq_stop;

typedef struct mq_ack { /* an acknowledgement that waits */
    uint64_t waits_for; /* end of its record: a position (MQ_GATE_DURABLE) or an offset (MQ_GATE_UPSTREAM);
                           MQ_NEVER: the record is lost */
    uint16_t ring, identifier;
    uint8_t first_byte; /* of the packet: PUBACK or PUBREC */
    uint8_t reason;     /* MQTT 5 reason code */
    bool waits;         /* for its record; false: only for earlier acknowledgements */
} mq_ack;

typedef struct mq_acl_entry {
    uint32_t topic; /* index + 1; 0: free */
    uint32_t generation; /* the topic's; bit 0: the client may publish (topic generations are odd) */
} mq_acl_entry;

typedef struct mq_alias { /* meaning of a topic alias set by a client; all zero: not set */
    mq_topic *topic;      /* topic found at the last look-up, valid for that generation */
    uint8_t *name;
    uint32_t generation;
    uint16_t length;
    uint8_t reason; /* not 0: Python refused the name for this reason; it was not kept */
} mq_alias;

typedef struct mq_alias_out {   /* a topic alias towards the client; number: index + 1 */
    uint32_t topic, generation; /* generation 0: free */
    uint32_t used;              /* last use, by connection->alias_clock */
} mq_alias_out;

struct mq_connection {
    mq_item item;
    int fd;              /* -1: no socket; Python feeds input and pulls output */
    uint8_t version;     /* 0 until CONNECT was accepted, then the protocol level: 3, 4, 5 */
    uint8_t stop;        /* mq_stop */
    uint8_t cause;       /* MQ_CLOSE_*, once closing */
    bool conversing;     /* CONNECT was received; enhanced authentication (AUTH) continues */
    bool trusted;        /* may publish to any topic that is not reserved */
    bool known;          /* Python was notified of it, and will be of its end */
    bool answered;       /* Python answered the TOPIC event */
    uint8_t refusal_reason; /* alternative answer: reason code for not storing the PUBLISH; 0: none */
    bool blocked;        /* the socket's buffer is full; continues at EPOLLOUT */
    bool hung_up;        /* its peer has left: epoll does not watch it while it is paused */
    bool proxying, upgrading; /* not answered: its PROXY header; its HTTP request for WebSocket */
    bool opening;        /* in loop->opening: its layers are not open */
    bool last_allowed;   /* the client may publish to last_topic */
    bool pinged;    /* in this turn */
    bool rate_limited; /* by its own bucket or, perhaps, that of its tenant */
    bool needs_barrier;     /* output after `barrier_bytes` depends on the journal: output_barrier.c */
    bool unconfirmed;       /* CONNACK waits for the barrier, and with it all output */
    mq_link touched;        /* in engine->touched */
    mq_link turn;           /* in the FIFO in which it waits to be parsed again, or closed */
    uint32_t ahead_bytes, barrier_bytes; /* of `out`: to be sent at once, and when barrier_at is durable */
    uint64_t barrier_at;
    uint32_t interest, ignored_bytes; /* events registered with epoll; input after the last output */
    mq_layer *layer;   /* next to the parser; NULL: the socket */
    uint32_t last_generation;
    mq_topic *last_topic; /* topic of its last PUBLISH: devices repeat topics */
    mq_session *session;
    mq_bytes in; /* rest of the input if a packet is incomplete or parsing stopped */
    mq_bytes out;
    uint64_t in_since_ms;       /* begin of the packet at its head, minus the time in a FIFO */
    uint64_t in_waits_since_ms; /* MQ_STOP_INPUT */
    uint32_t in_promised;       /* memory reserved for the rest of that packet: input.c */
    uint32_t handled_bytes;     /* bytes at the head of `in` that Python has processed */
    uint32_t need; /* length of the incomplete packet at the head of `in`, if known; or 0 */
    uint32_t packet_max_bytes; /* longest packet accepted from the client */
    uint32_t send_max_bytes;   /* longest packet that the client accepts; 0: any */
    uint32_t alias_max;        /* topic aliases that may be used towards the client */
    mq_alias_out *aliases_out; /* allocated on first use, for the life of the connection */
    uint32_t alias_clock;
    uint32_t out_chunk;                 /* bytes built at once: few for a client that reads slowly */
    uint64_t last_seen_ms, idle_max_ms; /* 0: no keep-alive */
    uint32_t policy;                    /* engine->policy of the answers in the cache */
    uint32_t acl_count, acl_capacity;
    mq_acl_entry *acl_cache;
    struct mq_acl_rules *acl_rules; /* of `policy`; NULL: Python decides about each topic */
    mq_ack *acks; /* that wait for a sync or a sink: circular buffer of acks_capacity */
    uint32_t acks_first, acks_count, acks_capacity;
    uint32_t unfinished; /* unfinished QoS 1 and 2 exchanges that the client began */
    uint32_t alias_capacity;
    mq_alias *aliases;                  /* aliases set by the client: number n is at n - 1 */
    mq_rate bucket;
    mq_tenant *tenant;                  /* name space of the client; NULL: that of all clients without one */
    mq_owner *owner;                    /* charged for the connection in the table `owned_as`; NULL: none */
    uint8_t owned_as, listener, address_family; /* AF_*; 0: none */
    uint8_t address[16];
    uint16_t port, full_ring; /* ring that had no room for its last message; 0: none */
    uint64_t full_since_ms;   /* time of its first message without room since one was stored in that ring */
    uint64_t event; /* number of the event that it waits for, with MQ_STOP_PYTHON */
    mq_link ack_wait;  /* in engine->ack_waiters */
    mq_link sync_wait; /* in engine->sync_waiters */
    mq_link log_wait;  /* in engine->log_waiters */
    mq_link socket;    /* in loop->read_paused, pending or lingering */
};

typedef struct mq_request { /* request to Python for work that the engine needs: events.c */
    bool sent;
    uint64_t sent_ms;
} mq_request;

#include "mqtt/durable/journal.h"
#include "mqtt/out/spill_file.h"
#include "mqtt/record_age.h"

/* ---- rings ---- */

typedef enum mq_ring_kind {
    MQ_RING_NONE = 0,
    MQ_RING_OWN,         /* this engine writes it */
    MQ_RING_OF_PRODUCER, /* another process writes it, the engine reads it */
    MQ_RING_ENDED /* the ring or its epoch has ended; the log has its records below `logged_to` */
} mq_ring_kind;

typedef struct mq_log_block {  /* records that a ring's log must not take yet: output_barrier.c */
    uint64_t from;             /* position of the first one; RB_NO_POSITION: none */
    uint64_t journal_position; /* the journal must be durable up to here first */
} mq_log_block;

struct mq_ring {
    uint8_t kind;
    bool waiting;  /* producer ring: Python decides about the topic of its next record */
    bool answered;
    bool moved;    /* producer ring: read further than stored in the reader's slot */
    bool bad;      /* producer ring: it has an invalid record */
    bool reported; /* Python got the event that it waits or is bad */
    mq_link stale_end; /* in engine->rings_to_announce: records were appended, the end is not announced */
    mq_ack_gate ack_gate;
    bool blocks; /* true: a full ring pauses its publisher up to queue_timeout_ms; false: refused at once */
    uint32_t queue_timeout_ms;    /* time that a blocking reader may block before it is evicted */
    uint64_t logged_to; /* the log has the records below this position that the ring has overwritten */
    uint64_t copied;              /* needed records below this position have been copied */
    uint64_t copy_at;             /* limit of appends: spill.c must check before it is passed */
    uint64_t refused_until_ms;    /* no room for copies: no appends before this time */
    uint64_t full_since_ms;       /* 0: the last claim, of any publisher, succeeded */
    uint64_t marked;              /* position of its last MARK in the journal */
    uint64_t retained_saved;               /* retained messages below have been saved */
    uint64_t resume_at;           /* producer ring: an earlier process has routed the records below */
    mq_log_block blocked, next_blocked; /* set by mq_block_log(); next_blocked applies after `blocked` */
    rb_writer *writer;
    rb_reader *reader;
    uint8_t *requested_topic; /* producer ring: topic that Python decides about */
    uint32_t requested_topic_length;
    uint8_t ring_name[RB_NAME_MAX_BYTES], ring_name_length; /* length 0: the name is not known */
    uint32_t epoch;                               /* of the ring */
    uint64_t moved_end; /* end of the ring when a topic last moved to another one: streams.c */
};

typedef struct mq_event {
    uint32_t kind, detail;
    uint64_t handle;     /* of the connection; 0 for a ring */
    uint32_t at, length; /* data, in connection->in or ring->requested_topic */
    bool of_client;      /* a packet of an accepted client */
} mq_event;

typedef struct mq_pulse { /* values that the watchdog's thread reads: watchdog.c */
    uint64_t beat;        /* odd while the loop sleeps; changes twice per round.  0: not begun */
    uint64_t waiting; /* connections not read or not sent to, for a cause that only the broker can end */
} mq_pulse;

struct mq_engine {
    mq_limits limits;
    mq_listener listeners[MQ_LISTENERS_MAX];
    mq_violation violation;
    mq_counters counters;
    mq_journal journal;
    mq_pulse pulse;
    mq_spill spill;
    uint64_t now_ms, now_ns; /* monotonic; wall */
    mq_clock clock;
    uint64_t measured_ns;    /* now_ns at the last measurement of a delivery */
    uint64_t next_deadline_ms;
    uint64_t input_read_ms;   /* all input that had arrived by then was read: end of clients' idle time */
    uint64_t unread_since_ms; /* begin of the first of these rounds */
    uint32_t unread_rounds; /* consecutive rounds that could not read all input */
    uint64_t appended_bytes; /* since outputs were last flushed */
    uint32_t policy;
    mq_slab topics, sessions, connections, subscription_ids, owners, subscriptions;
    mq_tenant **tenants; /* by number - 1; NULL: none */
    uint32_t tenant_count;
    bool delayed_counted; /* the tenants' use has the delayed messages from before the start */
    uint8_t *full_name; /* RB_KEY_MAX_BYTES: of the topic of one PUBLISH of a tenant's client */
    mq_table topic_table, ids_table, owner_table, subscription_table; /* the last by filter and session */
    uint64_t quota_refused_to[MQ_OWNED]; /* handle of the last owner that was refused */
    uint64_t retained_number;                   /* of the message that was retained last */
    uint64_t replaced_bytes; /* part of retained_bytes that only queue entries still reference */
    uint64_t promised_retained, promised_bytes; /* room for messages not shown yet */
    mq_list retained_changed;                   /* topics changed since the begin of the last save */
    mq_list retained_saving;                    /* topics that the save must still return */
    bool retained_kept;                         /* retained messages are saved */
    bool retained_unlisted; /* a change is not in retained_changed, for lack of memory */
    bool retained_due; /* a ring is about to overwrite records whose retained messages are not saved */
    mq_request retained_request;
    uint32_t share_queues; /* number of sessions that are queues of groups */
    bool lags;             /* some connections were not served with output in this round */
    uint32_t turn_work;    /* work of the connection that is being parsed */
    uint32_t turn_work_max; /* its part of MQ_ROUND_WORK */
    bool blocked_left, limited_left; /* some of that list were not continued: the round had enough work */
    uint32_t matched;      /* number of subscribers of the last appended record */
    uint32_t clock_hand;   /* index of the topic that is examined next: mq_topic_idle() */
    uint64_t seed[2];
    mq_trie trie;
    mq_match match; /* of the topic that the parser makes */
    uint64_t match_number;
    mq_stream *streams; /* in the order in which they are tried */
    uint32_t stream_count;
    uint32_t topic_max_bytes, topic_levels_max;
    bool receivers_checked; /* Python decides about sessions without receives_all */
    bool topics_moved;      /* some rings may not be durable up to moved_end */
    mq_ring *rings[MQ_RINGS_MAX];
    uint32_t ring_count;
    bool producers_pending;   /* a producer ring has unread records */
    bool producers_moved;     /* a producer ring was read further than its slot shows */
    bool producers_to_report; /* a producer ring may wait for Python and is not reported */
    bool producers_waiting;   /* a producer ring may wait for Python */
    mq_receipts *receipts;      /* of the first session that has receipts */
    uint32_t blocked_rings;     /* number of rings with `blocked` set */
    bool visible_when_durable;  /* of some ring: mq_make_durable_visible() must check */
    bool visible_pending;       /* more records became durable than one turn could make visible */
    uint64_t refusal_due_ms;    /* time at which the next ring begins to refuse publishers */
    mq_event events[MQ_EVENTS]; /* number n is at n % MQ_EVENTS */
    uint64_t event_done, event_taken, event_next; /* numbers: events.c has the invariant */
    mq_fifo ready, blocked, limited, closing, touched, ack_waiters;
    mq_fifo copy_sessions, rings_to_announce;
    uint32_t events_of[2];    /* events in `events`, by of_client */
    mq_fifo event_waiters[2]; /* connections that wait for room for an event, by of_client: events.c */
    bool serves_waiter;       /* the connection that is parsed was the first of its FIFO */
    mq_fifo log_waiters, sync_waiters; /* wait for records from the log; for a sync of the journal's log */
    mq_fifo memory_waiters[MQ_MEMORY_FIFOS]; /* input.c */
    uint64_t in_promised;    /* total of all connections */
    uint64_t starved_due_ms; /* time to close some connections and make room */
    uint64_t limited_due_ms; /* time at which the first of `limited` may continue */
    mq_spares blocks, smalls;
    mq_chunk *spare_chunks;
    uint32_t spare_chunk_count;
    uint8_t *scratch; /* properties of one PUBLISH, as in a record */
    uint32_t scratch_capacity;
    uint8_t *producer_properties; /* properties of a producer's record, MQ_READ_BYTES; NULL until needed */
    uint32_t read_bytes; /* bytes that may be read from each connection in this round */
    uint8_t *receive; /* MQ_CARRY_BYTES + MQ_READ_BYTES, for the connection being read */
};

/* engine.c */
mq_engine *mq_engine_new(const mq_limits *limits, const uint64_t seed[2]);
void mq_engine_free(mq_engine *engine);
void *mq_slab_take(mq_slab *slab);
void mq_slab_give(mq_slab *slab, mq_item *item);
void *mq_slab_at(const mq_slab *slab, uint32_t index);   /* NULL: never created */
void *mq_slab_get(const mq_slab *slab, uint64_t handle); /* NULL: stale */
void mq_slab_trim(mq_slab *slab); /* frees the memory of unused chunks */
void mq_slab_free(mq_slab *slab);
bool mq_bytes_reserve(mq_engine *engine, mq_bytes *bytes, uint32_t more); /* room for `more` at the end */
void mq_bytes_free(mq_engine *engine, mq_bytes *bytes);
void mq_bytes_shrink(mq_engine *engine, mq_bytes *bytes); /* reduces the memory to what the content needs */
int mq_ring_add(mq_engine *engine, mq_ring ring);
void mq_ring_remove(mq_engine *engine, uint32_t ring);
void mq_announce_ends(mq_engine *engine); /* announces the ends of all rings with new records */

/* Work without sockets, before and after sockets are served: connections whose events Python has handled,
 * waiting acknowledgements, paused publishers, producer rings, deadlines. */
void mq_engine_step(mq_engine *engine);
void mq_counters_refresh(mq_engine *engine);
/* Divide the work of a round between so many connections. */
void mq_share_work(mq_engine *engine, uint32_t connections);
/* Milliseconds until mq_engine_step() must run again; 0: now; UINT64_MAX: never. */
uint64_t mq_engine_due(const mq_engine *engine);

mq_connection *mq_connection_open(mq_engine *engine, int fd, int listener);
void mq_connection_close(mq_engine *engine, mq_connection *connection, uint32_t cause);
void mq_connection_forget(mq_engine *engine, mq_connection *connection); /* frees it; the socket is closed */
bool mq_connection_over(mq_engine *engine,
                        mq_connection *connection); /* queues the CLOSED event; false: no room */
void mq_connection_touch(mq_engine *engine, mq_connection *connection); /* mark it as having output */
void mq_connection_ready(mq_engine *engine, mq_connection *connection); /* continue to parse its input */
/* Settings of a connection after CONNECT. */
typedef struct mq_connection_settings {
    uint64_t idle_max_ms;    /* 0: no keep-alive */
    uint32_t window;         /* limit of QoS 1 and 2 messages in flight to the client */
    uint32_t send_max_bytes; /* longest packet that the client accepts; 0: any */
    uint32_t alias_max;      /* topic aliases that may be used towards the client */
    uint8_t version;         /* protocol level: 3, 4, 5 */
    bool trusted;            /* may publish to any topic that is not reserved */
    mq_tenant *tenant;       /* NULL: none */
} mq_connection_settings;
void mq_connection_attach(mq_engine *engine, mq_connection *connection, mq_session *session,
                          const mq_connection_settings *settings);

/* keep_alive.c */
void mq_input_was_read(mq_engine *engine, uint64_t began_ms, bool all);
void mq_keep_alive_expire(mq_engine *engine); /* once all input before next_deadline_ms was read */

#include "mqtt/events.h"

/* watchdog.c */
void mq_pulse_beat(mq_engine *engine);
void mq_pulse_waiting(mq_engine *engine, uint64_t connections);

/* input.c */
uint8_t *mq_receive_buffer(mq_engine *engine, mq_connection *connection, uint32_t *capacity);
void mq_input_keep(mq_engine *engine, mq_connection *connection, const uint8_t *bytes, uint32_t length);
void mq_input_free(mq_engine *engine, mq_connection *connection);
/* Account for `bytes` received of the promised memory; UINT32_MAX ends the promise. */
void mq_input_promised(mq_engine *engine, mq_connection *connection, uint32_t bytes);
/* another packet is at the head of the input */
void mq_input_begins(mq_engine *engine, mq_connection *connection);
void mq_input_step(mq_engine *engine);
uint64_t mq_input_due_ms(const mq_engine *engine); /* MQ_NEVER: no connection waits */

/* parser.c */
void mq_received(mq_engine *engine, mq_connection *connection, uint32_t count);
void mq_continue(mq_engine *engine, mq_connection *connection);

/* output.c */
/* Queue `bytes` as output, after other output.  False: no memory, the connection is closed. */
bool mq_write_output(mq_engine *engine, mq_connection *connection, const void *bytes, uint32_t length);
/* Queue a DISCONNECT with the reason, if the protocol version has one, after other output. */
void mq_disconnect_packet(mq_engine *engine, mq_connection *connection, uint32_t cause);

/* acl_cache.c */
void mq_authorize(mq_engine *engine, mq_connection *connection, const mq_topic *topic, bool allowed);

/* in/topic_aliases.c */
void mq_aliases_free(mq_connection *connection);

/* rate_limit.c */
void mq_rate_set(const mq_engine *engine, mq_rate *bucket, uint32_t rate_max); /* full, if changed */
void mq_rate_begin(const mq_engine *engine, mq_connection *connection); /* CONNECT was accepted */

/* acks.c */
void mq_acks_release(mq_engine *engine);
void mq_acks_lost(mq_engine *engine, uint32_t ring, uint64_t from, uint64_t to);

#include "mqtt/quotas.h"
#include "mqtt/tenants.h"
#include "mqtt/route/topics.h"

/* queue.c */
bool mq_queue_reserve(mq_engine *engine, mq_session *session); /* false: the new entry is dropped */
mq_entry mq_queue_pop(mq_engine *engine, mq_session *session);   /* the caller takes over its reference */
bool mq_queue_next(const mq_session *session, mq_walk *walk);    /* false: no further entry */
/* Remove each entry, oldest first, for which `take` returns true; `take` takes over its reference and must
 * not use this queue.  Needs no memory. */
void mq_queue_sift(mq_engine *engine, mq_session *session, bool (*take)(mq_engine *, const mq_entry *));
void mq_queue_clear(mq_engine *engine, mq_session *session);
void mq_spare_chunks_free(mq_engine *engine);

#include "mqtt/out/queue.h"

#endif
