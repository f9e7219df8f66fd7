/* SPDX-License-Identifier: Apache-2.0
 *
 * The gate before a ZeroMQ socket, as Python sees it.
 *
 * libzmq keeps the parts of a message until the last one has arrived, without a limit on their number.  The
 * gate listens for peers and passes their bytes to libzmq, which listens on an inner socket.  It counts parts
 * and bytes of each message and disconnects a peer that exceeds a limit.
 *
 * Read by the C compiler and by cffi's cdef(): declarations only.  gt_run() is for one thread, and cffi
 * releases the GIL around it.  gt_stop(), gt_admit(), gt_drained() and gt_counts_of() are for any thread.
 */

typedef struct gt_limits {
    uint32_t connections_max;
    uint32_t parts_max;            /* of one message */
    uint64_t message_max_bytes;    /* of all its parts; a command counts as a message */
    uint64_t unfinished_max_bytes; /* of messages without an end, of all peers */
    uint64_t undrained_max_bytes;  /* of finished messages since gt_drained(): beyond, peers wait */
    uint32_t unfinished_max_ms;    /* from the first byte of a message to its last */
    uint32_t unread_max_ms;        /* longest time without reading by the peer; 0: no limit */
} gt_limits;

typedef struct gt_counts {
    uint32_t open;       /* connections now */
    uint64_t accepted;   /* since the start, as all below */
    uint64_t refused;    /* connections_max, or no descriptor */
    uint64_t malformed;  /* bytes that are not ZMTP 3 */
    uint64_t too_long;   /* parts_max or message_max_bytes */
    uint64_t unfinished; /* unfinished_max_bytes or unfinished_max_ms */
    uint64_t unread;     /* unread_max_ms */
} gt_counts;

typedef struct gt_gate gt_gate;

/* Open a gate on `listener`, a non-blocking listening socket that the caller keeps.  `inner`: the name of
 * libzmq's Unix socket in the abstract namespace, without the leading zero byte, `length` bytes.  NULL with
 * errno: no memory or no descriptor. */
gt_gate *gt_open(int listener, const char *inner, uint32_t length, const gt_limits *limits);

/* Serve until gt_stop().  0, or an errno of epoll. */
int gt_run(gt_gate *gate);

/* End gt_run(): no connection is accepted, and output of libzmq is still passed on for at most
 * `linger_ms`. */
void gt_stop(gt_gate *gate, uint32_t linger_ms);

/* Limit the connections from now on, up to gt_limits.connections_max.  Open ones stay. */
void gt_admit(gt_gate *gate, uint32_t connections_max);

/* Report that libzmq's socket had no further message: waiting peers continue. */
void gt_drained(gt_gate *gate);

void gt_counts_of(const gt_gate *gate, gt_counts *counts);

/* Free the gate, after gt_run() has returned. */
void gt_close(gt_gate *gate);
