/* SPDX-License-Identifier: Apache-2.0
 *
 * The MQTT load generator as Python sees it: many clients in one loop, and a sink for its calibration.
 *
 * Read by the C compiler and by cffi's cdef(): declarations only.  Python creates the clients (ld_client_add,
 * ld_topics_add: with encoded frames), starts a phase (ld_begin) and calls ld_poll() in time slices until the
 * phase is done; cffi releases the GIL around it.  Only one thread at a time may use a run.
 *
 * A payload of LD_STAMP_BYTES or more begins with its stamp, little-endian:
 *
 *     0  u32  number of the run
 *     4  u32  stream: 3 * topic + QoS
 *     8  u64  sequence number in its stream, from 0
 *    16  u64  time when it was due or sent, CLOCK_MONOTONIC in ns
 */

enum {                 /* phases that ld_begin() starts */
    LD_CONNECTING = 1, /* every client connects and subscribes */
    LD_PUBLISHING = 2, /* publishers send, until they have sent messages_max each */
    LD_DRAINING = 3,   /* no message is sent; until all are acknowledged,
                          delivered and pinged */
    LD_IDLE = 4        /* connections are only kept open; never done */
};

enum {                     /* failures; the first detail of each kind is kept */
    LD_FAIL_CONNECT = 0,   /* errno of connect() */
    LD_FAIL_REFUSED = 1,   /* code of CONNACK */
    LD_FAIL_SUBSCRIBE = 2, /* code of SUBACK */
    LD_FAIL_CLOSED = 3,    /* by the broker: reason of its DISCONNECT, or 0 */
    LD_FAIL_RESET = 4,     /* errno of send() or recv() */
    LD_FAIL_PROTOCOL = 5,  /* first byte of an unexpected packet */
    LD_FAIL_MEMORY = 6,
    LD_FAIL_PUBLISH = 7, /* reason code of PUBACK, PUBREC or PUBCOMP; the
                            connection stays */
};

enum {
    LD_STAMP_BYTES = 24,
    LD_BUCKETS = 4480,  /* buckets of a histogram; the last one has all longer times */
    LD_BUCKET_BITS = 7, /* resolution: 1 part in 2^7 */
    LD_PATTERN_MAX = 100,
    LD_NO_GROUP = 4294967295 /* a client that subscribes to nothing */
};

enum {
    LD_LATENCY = 0,
    LD_ACKNOWLEDGED = 1,
    LD_CONNECTED = 2
}; /* histograms, in ns */

typedef struct ld_settings {
    uint32_t run;            /* in every payload: distinguishes messages of others */
    uint32_t version;        /* 4: MQTT 3.1.1, 5: MQTT 5 */
    uint32_t payload_bytes;  /* payloads of LD_STAMP_BYTES or more are stamped */
    uint32_t window;         /* QoS 1 and 2 of one publisher in flight, 1 .. 65535 */
    uint32_t outstanding;    /* messages of one publisher not yet delivered to all;
                                0: no limit */
    uint32_t connecting_max; /* clients between connect() and CONNACK, at least 1 */
    uint32_t spin_us;        /* time awake before a message is due, or while one is
                                in flight */
    uint32_t retain;         /* 0, 1 */
    uint32_t random_topics;  /* 0: a publisher's topics in turn; 1: any */
    uint32_t latency;        /* 1: every delivery is counted in the histogram LD_LATENCY */
    uint32_t pattern_length; /* QoS of a publisher's messages: pattern[0], ...,
                                repeated */
    uint8_t pattern[100];
    uint64_t messages_max; /* of one publisher; 0: no limit */
    double connects_per_s; /* 0: as fast as possible */
    double messages_per_s; /* of all publishers together; 0: as fast as possible */
} ld_settings;

typedef struct ld_counters {
    uint64_t connected;      /* clients, now */
    uint64_t subscribed;     /* SUBACK packets */
    uint64_t sent[3];        /* messages, by QoS */
    uint64_t acknowledged;   /* QoS 1 and 2, completely */
    uint64_t unacknowledged; /* now */
    uint64_t received;       /* PUBLISH packets */
    uint64_t foreign;        /* of them: not of this run, or not stamped */
    uint64_t expected;       /* deliveries expected for the sent messages */
    uint64_t delivered;      /* of those, without duplicates */
    uint64_t stalls;         /* times that `outstanding` blocked a publisher for a second; missing
                                deliveries were then given up */
    uint64_t unsent;         /* due by the schedule, not sent */
    uint64_t bytes_out, bytes_in;
    uint64_t begun_ns, moved_ns; /* CLOCK_MONOTONIC: last ld_begin(); last packet
                                    after it */
    uint64_t cpu_ns;             /* of this thread in ld_poll() since ld_begin() */
    uint64_t failed[8];          /* by LD_FAIL_* */
    int64_t detail[8];
} ld_counters;

typedef struct ld_tally { /* messages received by a group of subscribers, by QoS of the
                             publishing side */
    uint64_t received[3]; /* each message once */
    uint64_t duplicates[3];
    uint64_t disordered[3]; /* after a later one of its stream; normal in shared
                               groups */
} ld_tally;

typedef struct ld_run ld_run;
typedef struct ld_sink ld_sink;

/* Create a run without clients against `address`: a numeric IPv4 or IPv6 address, or the path of a Unix
 * socket, which begins with '/', or with '@' for an abstract one.  NULL with errno. */
ld_run *ld_open(const ld_settings *settings, const char *address, uint16_t port);

/* Send DISCONNECT where possible at once, close every socket, and free the run. */
void ld_close(ld_run *run);

/* Add a group, whose members get each message once in total: one subscriber, or a shared subscription.
 * Returns its number, or -errno. */
int64_t ld_group_add(ld_run *run, int shared);

/* Add a client with the first packet `connect` and further packets `subscribe`, which `subacks` SUBACK
 * packets answer; both are copied.  `group` is a number from ld_group_add(), or LD_NO_GROUP.  Returns its
 * number, or -errno. */
int64_t ld_client_add(ld_run *run, const uint8_t *connect, uint32_t connect_length, uint32_t group,
                      const uint8_t *subscribe, uint32_t subscribe_length, uint32_t subacks);

/* Make `client` a publisher to `count` topics with concatenated names; each message is for `fan` groups.
 * Once per client, before LD_PUBLISHING.  0, or -errno. */
int ld_topics_add(ld_run *run, uint32_t client, const uint8_t *names, const uint16_t *lengths, uint32_t count,
                  uint32_t fan);

/* Start a phase. */
void ld_begin(ld_run *run, int phase);

/* Work on the phase for at most `slice_ms`.  1: done; 0: the slice is over; or -errno. */
int ld_poll(ld_run *run, int slice_ms);

/* Counters of the whole run; valid until ld_close(), changed by ld_poll(). */
const ld_counters *ld_counters_of(ld_run *run);

/* Number of messages that `client` has sent with `qos`. */
uint64_t ld_client_sent(const ld_run *run, uint32_t client, uint32_t qos);

/* Tally of a group; NULL: no such group. */
const ld_tally *ld_tally_of(const ld_run *run, uint32_t group);

/* LD_BUCKETS counts, then the smallest and the largest value. */
const uint64_t *ld_histogram(const ld_run *run, uint32_t which);

/* Bucket in which a value is counted.  ld_bucket_floor() is the smallest value counted there.
 */
uint32_t ld_bucket(uint64_t value);
uint64_t ld_bucket_floor(uint32_t bucket);

/* Open a sink, to measure the generator itself: a server on `listener`, a non-blocking listening socket that
 * the caller keeps.  It accepts every client, acknowledges every packet, and sends each message as QoS 0 to
 * all clients with any subscription.  NULL with errno. */
ld_sink *ld_sink_open(int listener);

/* Serves for `slice_ms`.  0, or -errno. */
int ld_sink_poll(ld_sink *sink, int slice_ms);

void ld_sink_close(ld_sink *sink);
