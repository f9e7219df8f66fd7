/* SPDX-License-Identifier: Apache-2.0
 *
 * The MQTT hot path as Python sees it: sizes, codes, counters, and the loop.
 *
 * Read by the C compiler and by cffi's cdef(), as ringbuf_api.h: declarations only.  cffi releases the GIL
 * around these functions, for the sake of mq_loop_poll().  Short calls about one client or topic keep the
 * GIL.  They are methods of the type Engine, which mq_install() adds to the module (py_engine.c).
 */

/* ---- codes -------------------------------------------------------------------------------------- */

enum {                      /* events from the parser or the loop for Python */
       MQ_EVENT_PACKET = 1, /* a control packet that Python decides about: data is the whole packet */
       MQ_EVENT_TOPIC =
           2, /* a PUBLISH to a topic that is unknown or not yet authorized for this client: data is the
                 name; detail, if not 0, is its topic alias; the handler calls authorize() or drop_publish(),
                 otherwise the connection is closed */
       MQ_EVENT_CLOSED =
           3, /* the connection has ended, not closed by Python: detail is MQ_CLOSE_* */
       MQ_EVENT_PRODUCER_TOPIC = 4, /* as TOPIC, from a producer ring: detail is the ring */
       MQ_EVENT_PRODUCER_BAD =
           5, /* a producer ring has an invalid record; reading has stopped: detail is the ring */
       MQ_EVENT_BACKFILL = 6, /* the next record for this connection's session is only in the log: the
                               handler calls restore_records() and resume_delivery() */
       MQ_EVENT_JOURNAL = 7, /* request to save state; detail 0: a snapshot of sessions; 1: retained
                                messages.  Repeated once per second until begun */
       MQ_EVENT_UPGRADE = 8, /* the HTTP request of a WebSocket client, answered with mq_engine_upgrade() */
       MQ_EVENT_PROXY = 9    /* the PROXY header of a connection, answered with mq_loop_proxied() */
};

enum {                      /* causes for the end of a connection */
       MQ_CLOSE_SERVER = 0, /* requested by Python */
       MQ_CLOSE_PEER = 1,   /* end of file */
       MQ_CLOSE_RESET = 2,  /* the socket failed */
       MQ_CLOSE_MALFORMED = 3,
       MQ_CLOSE_PROTOCOL = 4,
       MQ_CLOSE_TOO_LARGE = 5,
       MQ_CLOSE_CONNECT_TIMEOUT = 6,
       MQ_CLOSE_KEEP_ALIVE = 7,
       MQ_CLOSE_FULL = 8, /* MQTT 3, QoS 1 or 2: the ring had no room or the log took no records within the
                             queue timeout, the sinks lost the record, or its tenant may delay no more
                             messages [MQTT-4.8.0-2] */
       MQ_CLOSE_MEMORY = 9,
       MQ_CLOSE_NOT_AUTHORIZED_YET = 10, /* Python did not answer a TOPIC event */
       MQ_CLOSE_LIMIT = 11,    /* more connections than allowed */
       MQ_CLOSE_ALIAS = 12,     /* MQTT 5: a topic alias of 0, or beyond the Topic Alias Maximum */
       MQ_CLOSE_RECEIVE_MAXIMUM = 13, /* MQTT 5: more unfinished exchanges than the Receive Maximum */
       MQ_CLOSE_RETAIN = 14,          /* MQTT 5: RETAIN, and retained_max is 0 */
       MQ_CLOSE_UNFINISHED = 15, /* the total of incomplete packets is at its limit, and this is an old one */
       MQ_CLOSE_QOS = 16, /* a PUBLISH at a QoS above qos_max */
       MQ_CLOSE_CAUSES = 17
};

enum {                        /* causes for a message not stored in a ring, or a record not delivered */
       MQ_DROP_QUEUE = 0,     /* the session's queue was full */
       MQ_DROP_OVERRUN = 1,   /* overwritten in the ring before it could be delivered */
       MQ_DROP_MEMORY = 2,    /* all queues together were at their limit */
       MQ_DROP_FULL = 3,      /* QoS 0, or MQTT 5: the ring had no room or the log took no records within the
                                 queue timeout */
       MQ_DROP_DENIED = 4,    /* the client may not publish to that topic */
       MQ_DROP_TOPICS = 5,    /* the topic table was full of topics in use */
       MQ_DROP_FORGED = 6,    /* a record of a producer ring that had changed since it was routed, or of
                                 another tenant */
       MQ_DROP_TOO_LARGE = 7, /* longer than a packet may be */
       MQ_DROP_EXPIRED = 8,   /* its Message Expiry Interval had passed before it could be sent */
       MQ_DROP_TOPIC_NAME = 9,     /* longer or deeper than allowed */
       MQ_DROP_PAYLOAD_FORMAT = 10, /* declared as UTF-8, but not valid */
       MQ_DROP_RETAINED_FULL = 11,  /* MQTT 5, QoS 1 or 2: the store of retained messages was full */
       MQ_DROP_DELAYED_FULL = 12, /* QoS 0, or MQTT 5: the tenant may delay no more messages */
       MQ_DROP_CAUSES = 13
};

enum { /* options of a route or an entry: those of the subscription, the state of the delivery, and above them
          the number of the subscription ids */
       MQ_OPTION_QOS = 3,
       MQ_OPTION_RETAIN = 4,    /* deliver with the RETAIN flag */
       MQ_OPTION_RELEASED = 8,  /* in flight, QoS 2: PUBREC received, PUBREL sent */
       MQ_OPTION_NO_LOCAL = 16, /* route: not for messages published by this session */
       MQ_OPTION_RETAIN_AS_PUBLISHED = 32, /* route: keep the RETAIN flag of the message */
       MQ_OPTION_OWN_ONLY = 64, /* route: only for messages of this session; entry: one of them */
       MQ_OPTION_SHARED = 128,             /* route: to a shared subscription; entry: of its member */
       MQ_OPTION_IDS_SHIFT = 8           /* upper 24 bits: number of subscription ids; 0: none */
};

enum { /* event that PUBACK and PUBREC wait for */
       MQ_GATE_NONE = 0,
       MQ_GATE_DURABLE = 1, /* the log's sync */
       MQ_GATE_UPSTREAM = 2 /* the sinks of all bridges that drain the ring */
};

enum { /* tables shared by all clients, with a limit per owner (quotas.c) */
       MQ_OWNED_OPENING = 0, /* connections before CONNECT was accepted, by address */
       MQ_OWNED_CONNECTIONS = 1,
       MQ_OWNED_SESSIONS = 2, /* sessions that outlast their connection */
       MQ_OWNED_FILTER_BYTES = 3, /* of subscriptions */
       MQ_OWNED_TOPICS = 4, /* charged to the owner whose message created the topic */
       MQ_OWNED_RETAINED = 5,
       MQ_OWNED_RETAINED_BYTES = 6,
       MQ_OWNED_QUEUE_BYTES = 7,
       MQ_OWNED_DELAYED = 8, /* messages that wait for their time; counted by tenant only */
       MQ_OWNED_DELAYED_BYTES = 9,
       MQ_OWNED = 10
};

enum {
    MQ_PEER_BYTES = 56, /* address and port of a client as text */
    MQ_RINGS_MAX = 4096, /* own and producer rings; 0 is the store of retained copies */
    MQ_LISTENERS_MAX = 16,
    MQ_TOPICS_MAX = 16777216,
    MQ_DELAYED_OVERHEAD_BYTES = 64 /* of a delayed message in its store, in addition to its own bytes */
};

enum { MQ_NO_TOPIC = 4294967295 }; /* not with those above: C23 would make all of them unsigned */

/* ---- limits and counters ------------------------------------------------------------------------ */

typedef struct mq_limits {
    uint32_t connections_max;
    uint32_t connect_timeout_ms; /* from accept to a complete CONNECT */
    uint32_t connect_max_bytes;  /* longest packet before CONNECT was accepted */
    uint32_t packet_max_bytes;   /* longest PUBLISH after it, fixed header included */
    uint32_t control_max_bytes;  /* longest packet of other types; packet_max_bytes also applies */
    uint32_t topics_max;
    uint32_t retained_max;       /* retained messages of clients; 0: none; announced to clients */
    uint32_t receive_max;        /* unfinished QoS 1 and 2 exchanges of one client, 1 .. 65535: announced to
                                    MQTT 5 clients; for others, the limit of exchanges that wait for a sync
                                    or a sink */
    uint32_t alias_max;          /* topic aliases that one MQTT 5 client may set; announced to it */
    uint64_t topics_max_bytes;   /* names of all topics, with the extra of deep ones (topics.c) */
    uint64_t retained_max_bytes; /* total of all retained messages */
    uint64_t queues_max_bytes;   /* memory of all queues of positions */
    uint64_t unfinished_max_bytes; /* memory of incomplete packets of all connections: input.c */
    uint64_t spill_max_bytes;    /* copies of records that rings have overwritten */
    uint64_t sessions_max;       /* sessions that outlast their connection */
    uint64_t filters_max_bytes;  /* subscriptions of all sessions, as counted by Python */
    uint32_t qos_max;            /* highest QoS of PUBLISH from clients: 0, 1 or 2 */
    uint32_t payload_max_bytes;  /* of PUBLISH from clients; 0: limited only by the packet */
    uint64_t in_flight_max_bytes; /* QoS 1 and 2 in flight to one client; 0: no limit */
    uint32_t share_percent;      /* share of each table that a single owner may use; 100: all */
    uint64_t owner_max[2][10];   /* limits of one user, one address, by MQ_OWNED_*; 0: by share_percent */
} mq_limits;

/* Settings and limits of one listener; limits of 0: the value of mq_limits.  Only the loop writes
 * `connections`. */
typedef struct mq_listener {
    uint32_t connections_max;
    uint32_t connect_max_bytes;
    uint32_t packet_max_bytes;
    uint32_t publish_rate_max; /* PUBLISH packets of one client per second; also its largest burst */
    uint32_t is_proxied;       /* its connections begin with a PROXY header; the next layer is TLS */
    uint32_t is_websocket;     /* its connections, inside TLS, begin with an HTTP request for WebSocket */
    uint32_t connections;      /* now */
    struct mq_tls_context *tls; /* NULL: not encrypted.  mq_tls_context_use() changes it */
} mq_listener;

/* The last connection that has broken the rules of TLS or of the PROXY protocol. */
typedef struct mq_violation {
    uint64_t count; /* of such connections */
    uint32_t listener;
    char peer[56];      /* MQ_PEER_BYTES; as in Engine.peer() */
    const char *reason; /* in static memory */
} mq_violation;

typedef struct mq_times { /* durations; counts[i]: below 2^i us, at or above the limit of i - 1 */
    uint64_t count, total_ns, max_ns, counts[26];
} mq_times;

typedef struct mq_counters {
    /* Totals since the engine was created. */
    uint64_t bytes_in, bytes_out;
    uint64_t packets_in; /* parsed in C or handed to Python */
    uint64_t packets_out; /* packets other than PUBLISH */
    uint64_t published_bytes, delivered_bytes; /* payloads of `published` and `delivered` */
    uint64_t published;  /* records appended for clients and for Python */
    uint64_t from_producers;    /* records read from producer rings */
    uint64_t delivered;  /* PUBLISH frames built, redelivery included */
    uint64_t redelivered;
    uint64_t retained_refused; /* delivered but not retained: store at its limit */
    uint64_t connections_opened;
    uint64_t full_waits; /* times a publisher was paused because its ring was full */
    uint64_t rate_waits; /* times a publisher was paused by publish_rate_max */
    uint64_t topics_recycled;
    uint64_t producer_lost; /* records that producer rings overwrote before they were read */
    uint64_t producer_evictions; /* times a producer ring evicted this reader, and may overwrite unread
                                    records */
    uint64_t spilled;          /* records copied out before their ring overwrote them */
    uint64_t spill_refused;    /* messages refused: no room for copies of records to be overwritten */
    uint64_t spill_over;       /* times a record was not copied because of spill_max_bytes */
    uint64_t restored;         /* records read back from the log, counted each time */
    uint64_t dropped[13];      /* by MQ_DROP_* */
    uint64_t closed[17];       /* by MQ_CLOSE_* */
    uint64_t quota_refused[10]; /* refusals at an owner's limit, by MQ_OWNED_* */
    uint64_t wakeups;          /* returns of epoll_wait */
    uint64_t input_waits;      /* times that reading was paused to keep unfinished_max_bytes */
    uint64_t event_waits;      /* times that a client's packet waited for room for an event */
    uint64_t accept_rests;     /* times that accepting paused at the limit of open files */
    mq_times delivery; /* age of records at their delivery: a sample, see mq_delivery_measure() */
    /* Current values. */
    uint64_t connections, sessions, topics;
    uint64_t topics_bytes; /* counted as for topics_max_bytes */
    uint64_t retained, retained_bytes; /* of clients; bytes: with replaced ones still in flight */
    uint64_t queues_bytes; /* memory of all queues of positions */
    uint64_t sessions_kept, filter_bytes; /* counted as for sessions_max and filters_max_bytes */
    uint64_t spilled_records, spilled_bytes; /* copies that sessions still wait for */
    uint64_t unfinished_bytes; /* memory of packets that are incomplete or wait for parsing */
    uint64_t spill_file_bytes; /* memory of the spill file */
    uint64_t spill_errno;      /* errno of its last failed allocation; 0: none */
    uint64_t acks_waiting; /* acknowledgements that wait for a sync or for a sink */
    uint64_t blocked;      /* publishers paused by a full ring */
} mq_counters;

typedef struct mq_engine mq_engine;
typedef struct mq_loop mq_loop;

/* Add the type Engine to the compiled module named `module`, after rb_install().  0, or -1 if out of
 * memory. */
int mq_install(const char *module);

/* ---- the loop (event_loop.c): the only system calls of this part ----------------------------- */

/* Open a loop over the connections of `engine`, which must outlive it.  NULL with errno. */
mq_loop *mq_loop_open(mq_engine *engine);

/* Close every socket of the loop, including listening ones, and free it. */
void mq_loop_close(mq_loop *loop);

/* Accept from `fd`, a non-blocking listening socket that the loop takes over.  `number`, 0 .. 15, is the
 * listener number that Engine.peer() returns for its connections.  0, or -errno. */
int mq_loop_listen(mq_loop *loop, int fd, int number);

/* Settings of listener `number`, 0 .. 15; valid as long as the engine.  NULL: no such number. */
mq_listener *mq_engine_listener(mq_engine *engine, int number);

/* The last violation; valid as long as the engine.  On the polling thread. */
const mq_violation *mq_engine_violation(const mq_engine *engine);

/* Answer the MQ_EVENT_PROXY of connection `handle` by the address of the client: AF_*, 16 bytes, of which
 * IPv4 uses 4, and port.  `family` 0: the proxy itself; -1: the header is invalid, and the connection is
 * closed.  The other layers follow, and the limits of the address apply. */
void mq_loop_proxied(mq_loop *loop, uint64_t handle, int family, const uint8_t *address, int port);

/* Send `answer` to the HTTP request of connection `handle`, during its MQ_EVENT_UPGRADE.  Then WebSocket
 * frames follow if it was accepted; otherwise the connection is closed.  True if it is open. */
int mq_engine_upgrade(mq_engine *engine, uint64_t handle, const uint8_t *answer, uint32_t length,
                      int accepted);

/* Close the listening sockets.  Existing connections stay. */
void mq_loop_close_listeners(mq_loop *loop);

/* Serve all connections until Python must act: events, a call (mq_loop_call_fd), or the end of `timeout_ms`
 * (-1: never).  Connections whose events the last poll returned continue first, unless they are paused.
 * Returns the number of events, or -errno. */
int mq_loop_poll(mq_loop *loop, int timeout_ms);

/* Send output, up to the limit of a round.  The next poll sends the rest. */
void mq_loop_send(mq_loop *loop);

/* Send all output that can be sent at once, before closing. */
void mq_loop_flush(mq_loop *loop);

/* An eventfd.  A write from any thread makes the loop check durable positions and producer rings, in C. */
int mq_loop_wake_fd(mq_loop *loop);

/* An eventfd.  A write from any thread makes mq_loop_poll() return. */
int mq_loop_call_fd(mq_loop *loop);

/* ---- the watchdog (watchdog.c) -------------------------------------------------------------------- */

enum {
    MQ_WATCH_OVER = 0,
    MQ_WATCH_STUCK = 1,    /* the polling thread was stuck and runs again: was_stuck_ticks */
    MQ_WATCH_UNSERVED = 2, /* clients wait, but no byte is read or sent: unserved_since_ticks */
    MQ_WATCH_SERVED = 3    /* bytes are read or sent again */
};

typedef struct mq_watchdog {
    uint32_t tick_ms;
    uint32_t serve_ticks;  /* limit of waiting clients without any byte read or sent: unserved */
    uint32_t report_ticks; /* limit of one round of the polling thread; then `signal` is raised */
    uint32_t exit_ticks;   /* later limit; then the process ends */
    int signal, status;
    int over_fd;   /* readable: stop watching */
    int stacks_fd; /* a file; the handler of `signal` appends the stacks of all threads to it */
    /* State of the watchdog; zeros to begin. */
    uint64_t seen_pulse, seen_bytes;
    uint32_t stuck_ticks, was_stuck_ticks, unserved_ticks, unserved_since_ticks;
} mq_watchdog;

/* Watch until there is something to report, MQ_WATCH_*.  For a thread of its own. */
int mq_watchdog_watch(const mq_engine *engine, mq_watchdog *dog);

/* Move the content of `stacks_fd` to standard error.  The rest is lost if nothing reads that output. */
void mq_watchdog_show_stacks(const mq_watchdog *dog);
