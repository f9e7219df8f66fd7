/* SPDX-License-Identifier: Apache-2.0
 *
 * The gate before a ZeroMQ socket, as Python sees it.
 *
 * libzmq keeps the parts of a message until the last one has come, and has no
 * limit on their number.  The gate listens where peers connect, passes their
 * bytes on to libzmq, which listens elsewhere, and counts parts and bytes of
 * each message on the way; a peer that exceeds a limit is disconnected.
 *
 * Read by the C compiler and by cffi's cdef(): declarations only.  gt_run() is
 * for one thread, and cffi releases the GIL around it; gt_stop(), gt_admit(),
 * gt_drained() and gt_counts_of() are for any thread.
 */

typedef struct gt_limits {
    uint32_t connections_max;
    uint32_t parts_max;            /* of one message */
    uint64_t message_max_bytes;    /* of all its parts; a command counts as a message */
    uint64_t unfinished_max_bytes; /* of messages without an end, of all peers */
    uint64_t undrained_max_bytes;  /* of whole messages since gt_drained(): then peers wait */
    uint32_t unfinished_max_ms;    /* from the first byte of a message to its last */
    uint32_t unread_max_ms;        /* an answer that the peer does not read; 0: any time */
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

/* A gate on `listener`, a listening socket that does not block and stays the
 * caller's.  `inner`: the name of libzmq's Unix socket in the abstract
 * namespace, without its leading zero byte, `length` bytes.  NULL: no memory or
 * no descriptor; errno says which. */
gt_gate *gt_open(int listener, const char *inner, uint32_t length, const gt_limits *limits);

/* Serves until gt_stop().  0, or an errno of epoll. */
int gt_run(gt_gate *gate);

/* Ends gt_run(): nothing more is accepted, and what libzmq has sent is passed
 * on for `linger_ms` at most. */
void gt_stop(gt_gate *gate, uint32_t linger_ms);

/* From now on only so many connections, up to gt_limits.connections_max; more that are open stay. */
void gt_admit(gt_gate *gate, uint32_t connections_max);

/* libzmq's socket had no further message: peers that wait may go on. */
void gt_drained(gt_gate *gate);

void gt_counts_of(const gt_gate *gate, gt_counts *counts);

/* After gt_run() has returned. */
void gt_close(gt_gate *gate);
