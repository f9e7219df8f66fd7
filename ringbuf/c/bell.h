/* SPDX-License-Identifier: Apache-2.0
 *
 * Bell: wake-up of one thread that sleeps on very many rings written by the same process.
 *
 * Each writer has a bit in the bell.  The writer sets the bit after its records are committed.  It wakes the
 * sleeper if one sleeps and the bit was not set before.  A busy ring therefore costs its writer one load per
 * batch, and the cost of a sleep does not depend on the number of rings.  The memory is private to the
 * process and part of no format.
 *
 * The sleeper takes the bits, fences, and then checks the rings.  Before it sleeps, it announces the sleep,
 * fences, and checks the bits again: either it sees the bit, or the writer sees the announcement.
 *
 * Urgent rings wake a sleeper from RB_BELL_NAPS.  Other rings wake it only from RB_BELL_SLEEPS, or if their
 * writer has no room.
 */
#ifndef BRIM_BELL_H
#define BRIM_BELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "record.h"

struct rb_bell {
    _Alignas(RB_LINE_BYTES) _Atomic uint32_t word; /* futex, incremented by each wake */
    _Atomic uint32_t asleep;                       /* RB_BELL_* */
    _Atomic uint32_t called;
    _Alignas(RB_LINE_BYTES) _Atomic uint64_t news[RB_BELL_RINGS / 64];
    _Atomic uint64_t urgent[RB_BELL_RINGS / 64];
};

/* Called by a writer after the fence in rb_end_publish(). */
void rb_bell_ring(rb_bell *bell, uint32_t index);
/* Called by a writer without room: wakes the thread that can make room. */
void rb_bell_hurry(rb_bell *bell);

/* Take and clear the bits of 64 rings, from number 64 * `word` on. */
static inline uint64_t rb_bell_take(rb_bell *bell, uint32_t word)
{
    if (atomic_load_explicit(&bell->news[word], memory_order_relaxed) == 0)
        return 0;
    return atomic_exchange_explicit(&bell->news[word], 0, memory_order_seq_cst);
}

/* True if any ring, or any urgent ring, has rung since its bit was taken. */
bool rb_bell_rung(const rb_bell *bell, bool urgent_only);

#endif
