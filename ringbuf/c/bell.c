/* SPDX-License-Identifier: Apache-2.0
 *
 * Bells: see bell.h.
 */
#include "bell.h"

#include <stdlib.h>
#include <string.h>

#include "ring.h"

#define WORDS (RB_BELL_RINGS / 64)
#define RECHECK_NS 1000000000ll /* upper limit of the delay by a lost wake-up */

rb_bell *rb_bell_new(void)
{
    rb_bell *bell = aligned_alloc(_Alignof(rb_bell), sizeof *bell);
    if (bell != NULL)
        memset(bell, 0, sizeof *bell);
    return bell;
}

void rb_bell_free(rb_bell *bell)
{
    free(bell);
}

void rb_writer_bell(rb_writer *writer, rb_bell *bell, uint32_t index)
{
    writer->bell_index = index % RB_BELL_RINGS;
    /* pairs with the acquire in rb_end_publish(): bell_index is stored before the bell */
    atomic_store_explicit(&writer->bell, bell, memory_order_release);
}

void rb_bell_urgent(rb_bell *bell, uint32_t index, int urgent)
{
    uint64_t bit = (uint64_t)1 << index % 64;
    _Atomic uint64_t *word = &bell->urgent[index % RB_BELL_RINGS / 64];
    if (urgent)
        atomic_fetch_or_explicit(word, bit, memory_order_relaxed);
    else
        atomic_fetch_and_explicit(word, ~bit, memory_order_relaxed);
}

static void wake(rb_bell *bell)
{
    if (atomic_exchange_explicit(&bell->asleep, RB_BELL_AWAKE, memory_order_seq_cst) == RB_BELL_AWAKE)
        return;
    atomic_fetch_add_explicit(&bell->word, 1, memory_order_seq_cst);
    rb_futex_wake(&bell->word);
}

void rb_bell_ring(rb_bell *bell, uint32_t index)
{
    _Atomic uint64_t *news = &bell->news[index / 64];
    uint64_t bit = (uint64_t)1 << index % 64;
    if (atomic_load_explicit(news, memory_order_relaxed) & bit) /* its setter has woken the sleeper */
        return;
    atomic_fetch_or_explicit(news, bit, memory_order_seq_cst);
    uint32_t asleep = atomic_load_explicit(&bell->asleep, memory_order_seq_cst); /* rb_bell_sleep() */
    if (asleep == RB_BELL_SLEEPS ||
        (asleep == RB_BELL_NAPS &&
         (atomic_load_explicit(&bell->urgent[index / 64], memory_order_relaxed) & bit)))
        wake(bell);
}

void rb_bell_hurry(rb_bell *bell)
{
    uint32_t asleep = atomic_load_explicit(&bell->asleep, memory_order_relaxed);
    if (asleep == RB_BELL_SLEEPS || asleep == RB_BELL_NAPS)
        wake(bell);
}

void rb_bell_call(rb_bell *bell)
{
    atomic_store_explicit(&bell->called, 1, memory_order_seq_cst);
    wake(bell);
}

int rb_bell_called(rb_bell *bell)
{
    if (atomic_load_explicit(&bell->called, memory_order_relaxed) == 0)
        return 0;
    return (int)atomic_exchange_explicit(&bell->called, 0, memory_order_seq_cst);
}

bool rb_bell_rung(const rb_bell *bell, bool urgent_only)
{
    for (int i = 0; i < WORDS; i++) {
        uint64_t rung = atomic_load_explicit(&bell->news[i], memory_order_relaxed);
        if (rung != 0 && urgent_only)
            rung &= atomic_load_explicit(&bell->urgent[i], memory_order_relaxed);
        if (rung != 0)
            return true;
    }
    return false;
}

void rb_bell_sleep(rb_bell *bell, uint32_t how, int64_t timeout_ns)
{
    uint32_t seen = atomic_load_explicit(&bell->word, memory_order_seq_cst);
    atomic_store_explicit(&bell->asleep, how, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the fence in rb_end_publish() */
    bool up = atomic_load_explicit(&bell->called, memory_order_seq_cst) != 0 ||
              (how != RB_BELL_WAITS && rb_bell_rung(bell, how == RB_BELL_NAPS));
    if (!up)
        (void)rb_futex_wait(&bell->word, seen, timeout_ns < RECHECK_NS ? timeout_ns : RECHECK_NS);
    atomic_store_explicit(&bell->asleep, RB_BELL_AWAKE, memory_order_seq_cst);
}

void rb_bell_drain(rb_bell *bell)
{
    for (uint32_t i = 0; i < WORDS; i++)
        rb_bell_take(bell, i);
    atomic_thread_fence(memory_order_seq_cst); /* bell.h: the caller checks the rings after this */
}
