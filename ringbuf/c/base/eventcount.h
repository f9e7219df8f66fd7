/* SPDX-License-Identifier: Apache-2.0
 *
 * Eventcount: a thread sleeps until a condition holds that another thread or process makes true, and no
 * wake-up is lost.
 *
 *   sleeper   seen = rb_prepare(); check the condition again; rb_wait(seen); check it again
 *   waker     make the condition true; fence (seq_cst); rb_notify()
 *
 * The sleeper sets its bits, fences, and checks the condition.  The waker makes the condition true, fences,
 * and reads the bits.  At least one of them sees the other.  The waker clears the bits before it increments
 * the epoch, and the sleeper reads the epoch before it sets its bits: a wake-up after rb_prepare() ends the
 * wait.  The waker clears the bits so that a sleeper that died costs one system call, not one per event.
 *
 * Without a sleeper, rb_notify() costs one load.  FUTEX_PRIVATE is not used, because several processes map
 * the words.  A sleeper only reads the epoch, so a read-only mapping of it is sufficient.
 */
#ifndef BRIM_EVENTCOUNT_H
#define BRIM_EVENTCOUNT_H

#include <stdatomic.h>
#include <stdint.h>

/* Announce a sleep.  Returns the value for rb_wait(). */
static inline uint32_t rb_prepare(const _Atomic uint32_t *epoch, _Atomic uint64_t *sleepers, uint64_t bits)
{
    uint32_t seen = atomic_load_explicit(epoch, memory_order_acquire); /* rb_wake() */
    atomic_fetch_or_explicit(sleepers, bits, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the fence of the waker */
    return seen;
}

/* Sleep while the epoch is `seen`, for at most `ns` and a second.  RB_OK, or RB_INTERRUPTED by a signal. */
int rb_wait(const _Atomic uint32_t *epoch, uint32_t seen, int64_t ns);

/* Wake all threads that wait on the epoch. */
void rb_wake(_Atomic uint32_t *epoch);

static inline void rb_notify(_Atomic uint32_t *epoch, _Atomic uint64_t *sleepers)
{
    if (atomic_load_explicit(sleepers, memory_order_relaxed) != 0 &&
        atomic_exchange_explicit(sleepers, 0, memory_order_seq_cst) != 0)
        rb_wake(epoch);
}

#endif
