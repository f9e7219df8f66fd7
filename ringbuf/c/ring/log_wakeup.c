/* SPDX-License-Identifier: Apache-2.0
 *
 * Wakeup: see log_wakeup.h.
 */
#include "ring/log_wakeup.h"

#include <stdlib.h>
#include <string.h>

#include "base/eventcount.h"
#include "ring/ring.h"

#define WORDS (RB_WAKEUP_RINGS / 64)

rb_wakeup *rb_wakeup_new(void)
{
    rb_wakeup *wakeup = aligned_alloc(_Alignof(rb_wakeup), sizeof *wakeup);
    if (wakeup != NULL)
        memset(wakeup, 0, sizeof *wakeup);
    return wakeup;
}

void rb_wakeup_free(rb_wakeup *wakeup)
{
    free(wakeup);
}

void rb_writer_wakeup(rb_writer *writer, rb_wakeup *wakeup, uint32_t index)
{
    writer->wakeup_index = index % RB_WAKEUP_RINGS;
    /* pairs with the acquire in rb_announce_end(): wakeup_index is stored before the wakeup */
    atomic_store_explicit(&writer->wakeup, wakeup, memory_order_release);
}

void rb_wakeup_urgent(rb_wakeup *wakeup, uint32_t index, int urgent)
{
    uint64_t bit = (uint64_t)1 << index % 64;
    _Atomic uint64_t *word = &wakeup->urgent[index % RB_WAKEUP_RINGS / 64];
    if (urgent)
        atomic_fetch_or_explicit(word, bit, memory_order_relaxed);
    else
        atomic_fetch_and_explicit(word, ~bit, memory_order_relaxed);
}

static void wake(rb_wakeup *wakeup)
{
    rb_notify(&wakeup->word, &wakeup->asleep);
}

void rb_wakeup_signal(rb_wakeup *wakeup, uint32_t index)
{
    _Atomic uint64_t *news = &wakeup->news[index / 64];
    uint64_t bit = (uint64_t)1 << index % 64;
    if (atomic_load_explicit(news, memory_order_relaxed) & bit) /* its setter has woken the sleeper */
        return;
    atomic_fetch_or_explicit(news, bit, memory_order_seq_cst);
    uint64_t asleep = atomic_load_explicit(&wakeup->asleep, memory_order_seq_cst); /* rb_wakeup_sleep() */
    if (asleep == RB_WAKEUP_SLEEPS ||
        (asleep == RB_WAKEUP_BACKOFF &&
         (atomic_load_explicit(&wakeup->urgent[index / 64], memory_order_relaxed) & bit)))
        wake(wakeup);
}

void rb_wakeup_need_space(rb_wakeup *wakeup)
{
    uint64_t asleep = atomic_load_explicit(&wakeup->asleep, memory_order_relaxed);
    if (asleep == RB_WAKEUP_SLEEPS || asleep == RB_WAKEUP_BACKOFF)
        wake(wakeup);
}

void rb_wakeup_call(rb_wakeup *wakeup)
{
    atomic_store_explicit(&wakeup->called, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the fence in rb_prepare() */
    wake(wakeup);
}

int rb_wakeup_called(rb_wakeup *wakeup)
{
    if (atomic_load_explicit(&wakeup->called, memory_order_relaxed) == 0)
        return 0;
    return (int)atomic_exchange_explicit(&wakeup->called, 0, memory_order_seq_cst);
}

bool rb_wakeup_is_set(const rb_wakeup *wakeup, bool urgent_only)
{
    for (int i = 0; i < WORDS; i++) {
        uint64_t set = atomic_load_explicit(&wakeup->news[i], memory_order_relaxed);
        if (set != 0 && urgent_only)
            set &= atomic_load_explicit(&wakeup->urgent[i], memory_order_relaxed);
        if (set != 0)
            return true;
    }
    return false;
}

void rb_wakeup_sleep(rb_wakeup *wakeup, uint32_t how, int64_t timeout_ns)
{
    uint32_t seen = rb_prepare(&wakeup->word, &wakeup->asleep, how);
    bool up = atomic_load_explicit(&wakeup->called, memory_order_seq_cst) != 0 ||
              (how != RB_WAKEUP_WAITS && rb_wakeup_is_set(wakeup, how == RB_WAKEUP_BACKOFF));
    if (!up)
        (void)rb_wait(&wakeup->word, seen, timeout_ns);
    atomic_store_explicit(&wakeup->asleep, RB_WAKEUP_AWAKE, memory_order_seq_cst);
}
