/* SPDX-License-Identifier: Apache-2.0
 *
 * The limiter before a ZeroMQ socket, as Python sees it.
 *
 * libzmq keeps the parts of a message until the last one has arrived, without a limit on their number.  The
 * limiter listens for peers and passes their bytes to libzmq, which listens on an inner socket.  It counts
 * parts and bytes of each message and disconnects a peer that exceeds a limit.
 *
 * Read by the C compiler and by cffi's cdef(): declarations only.  zl_run() is for one thread, and cffi
 * releases the GIL around it.  zl_stop(), zl_set_connections_max(), zl_drained() and zl_read_counts()
 * are for any thread.
 */

typedef struct zl_limits {
    uint32_t connections_max;
    uint32_t parts_max;            /* of one message */
    uint64_t message_max_bytes;    /* of all its parts; a command counts as a message */
    uint64_t unfinished_max_bytes; /* of messages without an end, of all peers */
    uint64_t undrained_max_bytes;  /* of finished messages since zl_drained(): beyond, peers wait */
    uint64_t received_max_bytes;   /* of all open connections, without heartbeats; 0: no limit */
    uint32_t unfinished_max_ms;    /* from the first byte of a message to its last */
    uint32_t unread_max_ms;        /* longest time without reading by the peer; 0: no limit */
} zl_limits;

typedef struct zl_counts {
    uint32_t open;       /* connections now */
    uint64_t accepted;   /* since the start, as all below */
    uint64_t refused;    /* connections_max, also silent ones that made room, or no descriptor */
    uint64_t malformed;  /* bytes that are not ZMTP 3 */
    uint64_t too_long;   /* parts_max or message_max_bytes */
    uint64_t unfinished; /* unfinished_max_bytes or unfinished_max_ms */
    uint64_t unread;     /* unread_max_ms */
    uint64_t too_many_bytes;   /* received_max_bytes */
} zl_counts;

typedef struct zl_limiter zl_limiter;

/* Open a limiter on `listener`, a non-blocking listening socket that the caller keeps.  `inner`: the name of
 * libzmq's Unix socket in the abstract namespace, without the leading zero byte, `length` bytes.  NULL with
 * errno: no memory or no descriptor. */
zl_limiter *zl_open(int listener, const char *inner, uint32_t length, const zl_limits *limits);

/* Serve until zl_stop().  0, or an errno of epoll. */
int zl_run(zl_limiter *limiter);

/* End zl_run(): no connection is accepted, and output of libzmq is still passed on for at most
 * `linger_ms`. */
void zl_stop(zl_limiter *limiter, uint32_t linger_ms);

/* Limit the connections from now on, up to zl_limits.connections_max.  Open ones stay. */
void zl_set_connections_max(zl_limiter *limiter, uint32_t connections_max);

/* Report that libzmq's socket had no further message: waiting peers continue. */
void zl_drained(zl_limiter *limiter);

void zl_read_counts(const zl_limiter *limiter, zl_counts *counts);

/* Free the limiter, after zl_run() has returned. */
void zl_close(zl_limiter *limiter);
