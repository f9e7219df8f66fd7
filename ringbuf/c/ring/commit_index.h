/* SPDX-License-Identifier: Apache-2.0
 *
 * Commit index: positions of records per chunk, for a blocking reader in the writer's process.  With
 * it the reader takes runs of records without reading each header.  The memory is private to the process and
 * part of no format.
 *
 * Each chunk of the ring has a step.  The writer stores it at the claim of the chunk's first record, when all
 * earlier records are committed.  A reader never uses the step of its cursor's chunk or of an earlier one.
 * The writer reuses a step one ring length later, which is behind the reader's released position.
 *
 * The tail is a step behind the last published record.  It is overwritten all the time, so there are two, and
 * a count selects the valid one.  A reader that finds the count changed after its read discards the result.
 */
#ifndef BRIM_COMMIT_INDEX_H
#define BRIM_COMMIT_INDEX_H

#include "ring/layout.h"

typedef struct rb_step {
    _Atomic uint64_t position; /* of the first record that begins in the chunk; stored last */
    uint64_t offset;           /* offset of that record */
    uint64_t before_ns;        /* timestamp of the record before it */
    uint64_t plain_from;       /* from here up to `position`, checksums cover all payloads */
} rb_step;

typedef struct rb_tail { /* same fields as a step */
    _Atomic uint64_t position, offset, before_ns, plain_from;
} rb_tail;

struct rb_commit_index {
    _Alignas(RB_LINE_BYTES) _Atomic uint64_t count; /* tail[count & 1] is valid; stored last */
    rb_tail tail[2];
    _Alignas(RB_LINE_BYTES) rb_step step[RB_INDEX_ENTRIES];
};

#endif
