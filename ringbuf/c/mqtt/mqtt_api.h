/* SPDX-License-Identifier: Apache-2.0
 *
 * The MQTT hot path as Python sees it: sizes, codes, counters, and the loop.
 *
 * Read by the C compiler and by cffi's cdef(), like ringbuf_api.h: declarations only.  cffi releases the GIL
 * around these functions, which is what mq_loop_poll() is for.  Everything short that decides about one
 * client or topic keeps it, and is a method of the type Engine, which mq_install() adds to the module
 * (engine_calls.c).
 */

/* ---- codes -------------------------------------------------------------------------------------- */

enum {                      /* what the parser or the loop hands to Python */
       MQ_EVENT_PACKET = 1, /* a control packet that Python decides about: data is the whole packet */
       MQ_EVENT_TOPIC =
           2, /* a PUBLISH to a topic that is unknown, or that this client was never judged for: data is
                 the name; detail, if not 0, is the topic alias that stands for it; whoever handles it calls
                 judge() or skip(), or the connection is closed */
       MQ_EVENT_CLOSED =
           3, /* the connection is gone, and not because Python closed it: detail is MQ_CLOSE_* */
       MQ_EVENT_SOURCE = 4, /* as TOPIC, from a source ring: detail is the source */
       MQ_EVENT_SOURCE_BAD =
           5, /* a source ring holds what is no record; it is read no further: detail is the source */
       MQ_EVENT_COLD = 6,   /* what the session of this connection gets next is in the log only: whoever
                               handles it calls thaw() and warm() */
       MQ_EVENT_JOURNAL = 7 /* something is to be written down: detail 0: a checkpoint of sessions;
                               1: what is retained.  Comes again, once a second, until it is begun */
};

enum {                      /* why a connection was closed */
       MQ_CLOSE_SERVER = 0, /* Python asked for it */
       MQ_CLOSE_PEER = 1,   /* end of file */
       MQ_CLOSE_RESET = 2,  /* the socket failed */
       MQ_CLOSE_MALFORMED = 3,
       MQ_CLOSE_PROTOCOL = 4,
       MQ_CLOSE_TOO_LARGE = 5,
       MQ_CLOSE_CONNECT_TIMEOUT = 6,
       MQ_CLOSE_KEEP_ALIVE = 7,
       MQ_CLOSE_FULL = 8, /* QoS 1 or 2, and the ring had no room within the queue timeout [MQTT-4.8.0-2] */
       MQ_CLOSE_MEMORY = 9,
       MQ_CLOSE_UNJUDGED = 10, /* Python failed to answer a TOPIC event */
       MQ_CLOSE_LIMIT = 11,    /* more connections than allowed */
       MQ_CLOSE_ALIAS = 12,     /* MQTT 5: a topic alias of 0, or beyond the Topic Alias Maximum */
       MQ_CLOSE_RECEIVE_MAXIMUM = 13, /* MQTT 5: more unfinished exchanges than the Receive Maximum */
       MQ_CLOSE_RETAIN = 14,          /* MQTT 5: RETAIN, and retained_max is 0 */
       MQ_CLOSE_UNFINISHED = 15, /* all unfinished packets together are at their limit, and this is old */
       MQ_CLOSE_QOS = 16, /* a PUBLISH at a QoS above qos_max */
       MQ_CLOSE_CAUSES = 17
};

enum {                        /* why a message did not reach a ring, or a record not its subscriber */
       MQ_DROP_QUEUE = 0,     /* the session's queue was full */
       MQ_DROP_OVERRUN = 1,   /* overwritten in the ring before it could be delivered */
       MQ_DROP_MEMORY = 2,    /* all queues together were at their limit */
       MQ_DROP_FULL = 3,      /* QoS 0, and the ring had no room within the queue timeout */
       MQ_DROP_DENIED = 4,    /* the client may not publish to that topic */
       MQ_DROP_TOPICS = 5,    /* the topic table was full of topics in use */
       MQ_DROP_FORGED = 6,    /* a record of a source ring that had changed since it was routed */
       MQ_DROP_TOO_LARGE = 7, /* longer than a packet may be */
       MQ_DROP_EXPIRED = 8,   /* its Message Expiry Interval had passed before it could be sent */
       MQ_DROP_TOPIC_NAME = 9,     /* longer or deeper than allowed */
       MQ_DROP_PAYLOAD_FORMAT = 10, /* said to be UTF-8, and is not */
       MQ_DROP_RETAINED_FULL = 11,  /* MQTT 5, QoS 1 or 2: the store of retained messages was full */
       MQ_DROP_CAUSES = 12
};

enum { /* what is known of a route or an entry: one word, low bits first */
       MQ_TAG_QOS = 3,
       MQ_TAG_RETAIN = 4,    /* deliver with the RETAIN flag */
       MQ_TAG_RELEASED = 8,  /* in flight, QoS 2: PUBREC has come, PUBREL was sent */
       MQ_TAG_NO_LOCAL = 16, /* route: not for messages that this session has published */
       MQ_TAG_RETAIN_AS_PUBLISHED = 32, /* route: the RETAIN flag goes along */
       MQ_TAG_OWN_ONLY = 64,            /* route: only for messages that this session has published */
       MQ_TAG_SHARED = 128,             /* route: to a group; entry: of a group's member */
       MQ_TAG_GRANT_SHIFT = 8           /* upper 24 bits: number of a grant (grants.c), 0: none */
};

enum { /* what PUBACK and PUBREC wait for */
       MQ_GATE_NONE = 0,
       MQ_GATE_DURABLE = 1, /* the log's sync */
       MQ_GATE_UPSTREAM = 2 /* the sinks of all bridges that drain the ring */
};

enum { /* tables that all clients share, of which an owner has a part (owners.c) */
       MQ_OWNED_OPENING = 0, /* connections before CONNECT was accepted, by address */
       MQ_OWNED_CONNECTIONS = 1,
       MQ_OWNED_SESSIONS = 2, /* that outlast their connection */
       MQ_OWNED_FILTER_BYTES = 3, /* of subscriptions */
       MQ_OWNED_TOPICS = 4, /* by whose message made them known */
       MQ_OWNED_RETAINED = 5,
       MQ_OWNED_RETAINED_BYTES = 6,
       MQ_OWNED_QUEUE_BYTES = 7,
       MQ_OWNED = 8
};

enum {
    MQ_SOURCES_MAX = 4096, /* rings written here and elsewhere; 0 is the store of retained copies */
    MQ_LISTENERS_MAX = 16,
    MQ_TOPICS_MAX = 16777216,
    MQ_NO_TOPIC = 4294967295
};

/* ---- limits and counters ------------------------------------------------------------------------ */

typedef struct mq_limits {
    uint32_t connections_max;
    uint32_t connect_timeout_ms; /* from accept to a whole CONNECT */
    uint32_t connect_max_bytes;  /* longest packet before CONNECT was accepted */
    uint32_t packet_max_bytes;   /* longest PUBLISH after it, fixed header included */
    uint32_t control_max_bytes;  /* longest packet of any other type; packet_max_bytes holds for it as well */
    uint32_t topics_max;
    uint32_t retained_max;       /* retained messages of clients; 0: none, and clients are told */
    uint32_t receive_max;        /* QoS 1 and 2 exchanges of one client that are not at their end, 1 .. 65535:
                                    what MQTT 5 clients are told; of others, those that wait for the disk */
    uint32_t alias_max;          /* topic aliases that one MQTT 5 client may set: what it is told */
    uint64_t topics_max_bytes;   /* of the names of all topics, with what deep ones take (topics.c) */
    uint64_t retained_max_bytes; /* of them all */
    uint64_t queues_max_bytes;   /* memory of all queues of positions */
    uint64_t unfinished_max_bytes; /* memory of packets that are not whole, of all connections: input.c */
    uint64_t spill_max_bytes;    /* of copies of records that rings have overwritten */
    uint64_t sessions_max;       /* that outlast their connection */
    uint64_t filters_max_bytes;  /* of the subscriptions of all sessions, as Python counts them */
    uint32_t qos_max;            /* of PUBLISH from clients: 0, 1 or 2 */
    uint32_t payload_max_bytes;  /* of PUBLISH from clients; 0: what fits into a packet */
    uint64_t in_flight_max_bytes; /* QoS 1 and 2, to one client: no more goes out beyond it; 0: any */
    uint32_t share_percent;      /* of each table that one owner may have if it is alone; 100: all */
    uint64_t owner_max[2][8];    /* of one user, of one address: by MQ_OWNED_*; 0: as share_percent says */
} mq_limits;

/* What one listener allows.  0: what mq_limits says.  Another thread may take part in accepting: it counts
 * whom it keeps in `outside`, and is alone in writing that; the loop alone writes `connections`. */
typedef struct mq_listener {
    uint32_t connections_max;
    uint32_t connect_max_bytes;
    uint32_t packet_max_bytes;
    uint32_t publish_rate_max; /* PUBLISH of one client a second, and at once */
    uint32_t connections;      /* now */
    uint32_t outside;          /* now: accepted elsewhere, and not adopted, or not any more */
} mq_listener;

typedef struct mq_counters {
    /* Since the engine was made. */
    uint64_t bytes_in, bytes_out;
    uint64_t packets_in; /* parsed in C or handed to Python */
    uint64_t packets_out; /* those that are not PUBLISH */
    uint64_t published_bytes, delivered_bytes; /* payloads of `published` and `delivered` */
    uint64_t published;  /* records appended for clients and for Python */
    uint64_t sourced;    /* records read from source rings */
    uint64_t delivered;  /* PUBLISH frames built, redelivery included */
    uint64_t redelivered;
    uint64_t retained_refused; /* retained store at its limit: delivered, not retained */
    uint64_t connections_opened;
    uint64_t full_waits; /* times a publisher was paused because its ring was full */
    uint64_t rate_waits; /* times a publisher was paused because it is faster than its listener allows */
    uint64_t topics_recycled;
    uint64_t source_lost;      /* records that source rings overwrote before they were read */
    uint64_t source_evictions; /* times a source ring stopped heeding us, and may overwrite what we have not
                                  read */
    uint64_t spilled;          /* records copied out before their ring overwrote them */
    uint64_t spill_refused;    /* messages that were not taken: no room for what their ring would overwrite */
    uint64_t spill_over;       /* times a record was not copied because of spill_max_bytes */
    uint64_t thawed;           /* records that came back from the log, each time */
    uint64_t dropped[12];      /* by MQ_DROP_* */
    uint64_t closed[17];       /* by MQ_CLOSE_* */
    uint64_t turned_away[17];  /* by MQ_CLOSE_*, before they were adopted: written by another thread alone */
    uint64_t quota_refused[8]; /* times that an owner was refused more of a table, by MQ_OWNED_* */
    uint64_t wakeups;          /* returns of epoll_wait */
    uint64_t input_waits;      /* times that a connection was not read, to keep unfinished_max_bytes */
    uint64_t accept_rests;     /* times that accepting paused, because no more files may be open */
    /* Now. */
    uint64_t connections, sessions, topics;
    uint64_t topics_bytes; /* as topics_max_bytes counts them */
    uint64_t retained, retained_bytes; /* of clients; bytes: with what was replaced and is still in flight */
    uint64_t queues_bytes; /* memory of all queues of positions */
    uint64_t sessions_kept, filter_bytes; /* as sessions_max and filters_max_bytes count them */
    uint64_t spilled_records, spilled_bytes; /* copies that sessions still wait for */
    uint64_t unfinished_bytes; /* memory of packets that are not whole, or wait to be parsed */
    uint64_t spill_file_bytes; /* memory of the spill file */
    uint64_t spill_errno;      /* why it gets no more memory; 0: it does, or did not need any */
    uint64_t held;         /* acknowledgements that wait for a sync, or for a sink */
    uint64_t blocked;      /* publishers paused by a full ring */
} mq_counters;

typedef struct mq_engine mq_engine;
typedef struct mq_loop mq_loop;

/* Adds the type Engine to the compiled module named `module`, after rb_install().  0, or -1: out of memory.
 */
int mq_install(const char *module);

/* ---- the loop (loop.c): the only system calls of this part ---------------------------------------- */

/* A loop over the connections of `engine`, which must outlive it.  NULL: errno says why. */
mq_loop *mq_loop_open(mq_engine *engine);

/* Closes every socket it has, listening ones too, and frees it. */
void mq_loop_close(mq_loop *loop);

/* Accepts from `fd`, a listening socket that is non-blocking and from now on the loop's.  `number`, 0 .. 15,
 * is what Engine.peer() tells of the connections that come from it.  0, or -errno. */
int mq_loop_listen(mq_loop *loop, int fd, int number);

/* Serves `fd`, a connected stream socket that is the loop's from now on, as if it had been accepted from
 * listener `number`, `waited_ms` ago.  `family` (AF_*), 16 bytes of address and port are what Engine.peer()
 * tells.  Such a connection always ends with an event, unless Python closes it.  Its handle; 0: it was not
 * taken (a limit, memory), and the socket is closed. */
uint64_t mq_loop_adopt(mq_loop *loop, int fd, int number, int family, const uint8_t *address, int port,
                       uint32_t waited_ms);

/* The limits of listener `number`, 0 .. 15; valid while the engine is.  NULL: there is no such number. */
mq_listener *mq_engine_listener(mq_engine *engine, int number);

/* Whether listener `number`, or the engine, has as many connections as it may.  For any thread. */
int mq_listener_full(const mq_engine *engine, int number);

/* Stops accepting: what is connected stays. */
void mq_loop_deafen(mq_loop *loop);

/* Serves every connection until there is something for Python: events, or a call (mq_loop_call_fd), or
 * `timeout_ms` is over (-1: never).  Connections whose events were handed out by the last poll go on first,
 * unless they are held. Number of events, or -errno. */
int mq_loop_poll(mq_loop *loop, int timeout_ms);

/* Sends what can be sent at once: before closing. */
void mq_loop_flush(mq_loop *loop);

/* An eventfd.  Written from any thread, it makes the loop look at durable words and source rings, in C. */
int mq_loop_wake_fd(mq_loop *loop);

/* An eventfd.  Written from any thread, it makes mq_loop_poll() return. */
int mq_loop_call_fd(mq_loop *loop);

/* ---- the watchdog (watch.c) ----------------------------------------------------------------------- */

enum {
    MQ_WATCH_OVER = 0,
    MQ_WATCH_STUCK = 1,    /* the polling thread was stuck, and runs again: was_stuck_ticks */
    MQ_WATCH_UNSERVED = 2, /* clients wait, nothing is read or sent: unserved_since_ticks */
    MQ_WATCH_SERVED = 3    /* something is again */
};

typedef struct mq_watchdog {
    uint32_t tick_ms;
    uint32_t serve_ticks;  /* clients that wait so long, while nothing is read or sent, are unserved */
    uint32_t report_ticks; /* one round of the polling thread may take so long; then `signal` is raised */
    uint32_t exit_ticks;   /* and then the process ends */
    int signal, status;
    int over_fd; /* readable: stop watching */
    /* Of the watchdog itself; zeros to begin. */
    uint64_t seen_pulse, seen_bytes;
    uint32_t stuck_ticks, was_stuck_ticks, unserved_ticks, unserved_since_ticks;
} mq_watchdog;

/* Watches until there is something to report: MQ_WATCH_*.  For a thread of its own. */
int mq_watchdog_watch(const mq_engine *engine, mq_watchdog *dog);
