/* SPDX-License-Identifier: Apache-2.0
 *
 * A trail: what the writer of a ring says of it, chunk by chunk, to a gating reader in the same process, so
 * that this one takes runs of records without a look at each.  Memory of this process alone: no part of any
 * format.
 *
 * Each chunk of the ring has a step, written when its first record is claimed: every record before that is
 * there by then.  A reader uses no step of a chunk that its own cursor is in, or of one before it; and the
 * writer comes to that step again a ring later, which is behind what the reader has released.
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

struct rb_trail {
    rb_step step[RB_INDEX_ENTRIES];
};

#endif
