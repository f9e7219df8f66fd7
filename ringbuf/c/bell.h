/* SPDX-License-Identifier: Apache-2.0
 *
 * A bell: how one thread sleeps on very many rings that this same process writes.
 *
 * Each writer has a bit here.  It sets it after its records are there, and wakes the sleeper if there is one
 * and the bit was not set yet; so a busy ring costs its writer one load a batch, and no number of rings makes
 * a sleep longer.  It is memory of this process alone: no part of any format.
 *
 * The sleeper takes the bits, fences, and looks at the rings after that.  To sleep it says so, fences, and
 * looks at the bits once more: either it sees the bit, or the writer sees it asleep.
 *
 * Urgent rings wake a sleeper from a nap; the others only from deep sleep, and when they have no room left.
 */
#ifndef BRIM_BELL_H
#define BRIM_BELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "record.h"

struct rb_bell {
    _Alignas(RB_LINE_BYTES) _Atomic uint32_t word; /* futex, raised by each wake */
    _Atomic uint32_t asleep;                       /* RB_BELL_* */
    _Atomic uint32_t called;
    _Alignas(RB_LINE_BYTES) _Atomic uint64_t news[RB_BELL_RINGS / 64];
    _Atomic uint64_t urgent[RB_BELL_RINGS / 64];
};

/* What a writer calls, after the fence in rb_end_publish(). */
void rb_bell_ring(rb_bell *bell, uint32_t index);
/* A writer has no room: whoever may make some is woken. */
void rb_bell_hurry(rb_bell *bell);

/* Takes the bits of 64 rings, from number 64 * `word` on. */
static inline uint64_t rb_bell_take(rb_bell *bell, uint32_t word)
{
    if (atomic_load_explicit(&bell->news[word], memory_order_relaxed) == 0)
        return 0;
    return atomic_exchange_explicit(&bell->news[word], 0, memory_order_seq_cst);
}

/* Whether any ring, or any urgent one, has rung since its bit was taken. */
bool rb_bell_rung(const rb_bell *bell, bool urgent_only);

#endif
