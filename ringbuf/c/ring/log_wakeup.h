/* SPDX-License-Identifier: Apache-2.0
 *
 * Wakeup: wake-up of one thread that sleeps on very many rings written by the same process.
 *
 * Each writer has a bit here.  The writer sets the bit after its records are committed.  It wakes the
 * sleeper if one sleeps and the bit was not set before.  A busy ring therefore costs its writer one load per
 * batch, and the cost of a sleep does not depend on the number of rings.  The memory is private to the
 * process and part of no format.
 *
 * The sleeper takes the bits, fences, and then checks the rings.  Before it sleeps, it announces the sleep,
 * fences, and checks the bits again: either it sees the bit, or the writer sees the announcement.
 *
 * Urgent rings wake a sleeper from RB_WAKEUP_BACKOFF.  Other rings wake it only from RB_WAKEUP_SLEEPS, or
 * if their writer has no room.
 */
#ifndef BRIM_LOG_WAKEUP_H
#define BRIM_LOG_WAKEUP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/record.h"

struct rb_wakeup {
    _Alignas(RB_LINE_BYTES) _Atomic uint64_t asleep; /* RB_WAKEUP_*, the sleepers of the eventcount */
    _Atomic uint32_t word;                           /* its epoch */
    _Atomic uint32_t called;
    _Alignas(RB_LINE_BYTES) _Atomic uint64_t news[RB_WAKEUP_RINGS / 64];
    _Atomic uint64_t urgent[RB_WAKEUP_RINGS / 64];
};

/* Let the ring with this number wake a sleep of depth RB_WAKEUP_BACKOFF, or not. */
void rb_wakeup_urgent(rb_wakeup *wakeup, uint32_t index, int urgent);

/* Called by a writer after the fence in rb_announce_end(). */
void rb_wakeup_signal(rb_wakeup *wakeup, uint32_t index);
/* Called by a writer without room: wakes the thread that can make room. */
void rb_wakeup_need_space(rb_wakeup *wakeup);

/* Take and clear the bits of 64 rings, from number 64 * `word` on. */
static inline uint64_t rb_wakeup_take(rb_wakeup *wakeup, uint32_t word)
{
    if (atomic_load_explicit(&wakeup->news[word], memory_order_relaxed) == 0)
        return 0;
    return atomic_exchange_explicit(&wakeup->news[word], 0, memory_order_seq_cst);
}

/* True if any ring, or any urgent ring, was signalled since its bit was taken. */
bool rb_wakeup_is_set(const rb_wakeup *wakeup, bool urgent_only);

#endif
