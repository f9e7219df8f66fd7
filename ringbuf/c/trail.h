/* SPDX-License-Identifier: Apache-2.0
 *
 * A trail: what the writer of a ring says of it, chunk by chunk, to a gating reader in the same process, so
 * that this one takes runs of records without a look at each.  Memory of this process alone: no part of any
 * format.
 *
 * Each chunk of the ring has a step, written when its first record is claimed: every record before that is
 * there by then.  A reader uses no step of a chunk that its own cursor is in, or of one before it; and the
 * writer comes to that step again a ring later, which is behind what the reader has released.
 *
 * The tail is a step behind the last record of all that has been published.  It is written over and over, so
 * there are two, and a count that says which holds: a reader that finds the count changed afterwards has read
 * nothing.
 */
#ifndef BRIM_TRAIL_H
#define BRIM_TRAIL_H

#include "layout.h"

typedef struct rb_step {
    _Atomic uint64_t position; /* of the first record that begins in the chunk; stored last */
    uint64_t offset;           /* its number */
    uint64_t before_ns;        /* the timestamp of the one before it */
    uint64_t plain_from;       /* from this position on all records before it are covered by checksums */
} rb_step;

typedef struct rb_tail { /* as a step */
    _Atomic uint64_t position, offset, before_ns, plain_from;
} rb_tail;

struct rb_trail {
    _Alignas(RB_LINE_BYTES) _Atomic uint64_t count; /* tail[count & 1] holds; stored last */
    rb_tail tail[2];
    _Alignas(RB_LINE_BYTES) rb_step step[RB_INDEX_ENTRIES];
};

#endif
