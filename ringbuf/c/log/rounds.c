/* SPDX-License-Identifier: Apache-2.0
 *
 * Times of writes, syncs and sleeps.
 *
 * Records that arrive during a sync form the next round, so a ring of durability `disk` needs no timer.  A
 * ring of durability `interval` is read at every nap, some milliseconds, without a wake-up by its writer; the
 * writer wakes the log when it runs out of room (bell.h).  After a round with `disk` records the thread spins
 * for spin_ns before it sleeps, because a publisher that got its acknowledgement often publishes next.
 */
#include "log.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NAP_LEAST_NS 500000
#define NAP_MOST_NS 16000000    /* each end of a nap may interrupt a publisher and cool its caches */
#define LAZY_FOR_NS 100000000ll /* after this time without records, naps for interval rings end */
#define IDLE_NS 60000000000ll
#define SPIN_LOOKS 32

#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() ((void)0)
#endif

int64_t rb_log_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

rb_log *rb_log_new(rb_bell *bell)
{
    rb_log *log = calloc(1, sizeof *log);
    rb_log_inside *in = calloc(1, sizeof *in);
    rb_log_ring **moved = calloc(RB_BELL_RINGS, sizeof *moved);
    if (log == NULL || in == NULL || moved == NULL) {
        free(log);
        free(in);
        free(moved);
        return NULL;
    }
    log->inside = in;
    in->moved = moved;
    in->bell = bell;
    in->nap_ns = NAP_LEAST_NS;
    in->lazy_at = in->urgent_at = -LAZY_FOR_NS;
    in->disk.descriptor = -1;
    pthread_mutex_init(&in->lock, NULL);
    log->descriptor = log->wake_descriptor = -1;
    log->due_ns = INT64_MAX;
    return log;
}

void rb_log_free(rb_log *log)
{
    rb_direct_free(log);
    pthread_mutex_destroy(&log->inside->lock);
    free(log->inside->list);
    free(log->inside->moved);
    free(log->inside);
    free(log);
}

void rb_log_files(rb_log *log, const rb_log_calls *calls)
{
    log->inside->calls = *calls;
}

void rb_log_go_on(rb_log *log)
{
    rb_log_inside *in = log->inside;
    uint64_t waiting = log->extents_queued - log->extents_written;
    pthread_mutex_lock(&in->lock);
    memmove(in->list, in->list + log->extents_written, waiting * sizeof *in->list);
    log->extents_queued = waiting;
    log->extents_written = log->extents_settled = 0;
    in->settled_end = log->end;
    pthread_mutex_unlock(&in->lock);
    log->due_ns = INT64_MAX;
    for (uint64_t i = 0; i < waiting; i++)
        rb_log_note_due(log, in->list[i].ring);
    rb_disk_enter(log);
}

void rb_log_enter(rb_log *log, int64_t now)
{
    rb_log_inside *in = log->inside;
    pthread_mutex_lock(&in->lock);
    log->extents_queued = log->extents_written = log->extents_settled = 0;
    in->settled_end = log->end;
    pthread_mutex_unlock(&in->lock);
    log->unsynced_bytes = 0;
    log->due_ns = INT64_MAX;
    log->error = 0;
    in->short_of_memory = false;
    in->oldest_at = 0;
    for (uint32_t i = 0; i <= in->highest; i++)
        if (in->rings[i] != NULL) {
            in->hungry[i / 64] |= (uint64_t)1 << i % 64;
            in->rings[i]->waits_since = -1;
        }
    log->active_at = log->active_at == 0 ? now : log->active_at;
    rb_disk_enter(log);
}

/* Time until the end of the log must be proven; never while records wait for a sync. */
static int64_t idle_ns(const rb_log *log, int64_t now)
{
    if (log->proven == log->durable_position || log->extents_settled < log->extents_queued)
        return INT64_MAX;
    return log->active_at + log->prove_after_ns - now;
}

int rb_log_round(rb_log *log, int64_t now, int sync)
{
    uint64_t total = 0, taken;
    int result;
    log->rounds++;
    do {
        taken = rb_log_take(log, now, log->step_bytes);
        result = rb_log_write_all(log);
        total += taken;
    } while (result == RB_LOG_DONE && taken >= log->step_bytes && total < log->round_bytes);
    if (result == RB_LOG_FAILED)
        return result;
    if (result == RB_LOG_FULL || sync || log->due_ns <= now) {
        int synced = rb_log_sync_all(log, now);
        if (result != RB_LOG_FULL || synced == RB_LOG_FAILED)
            result = synced;
    }
    if (log->troubles && (result == RB_LOG_DONE || result == RB_LOG_MOVED))
        return RB_LOG_TROUBLE;
    return result == RB_LOG_DONE && idle_ns(log, now) <= 0 ? RB_LOG_IDLE : result;
}

/* ---- sleep ---- */

/* Length of a nap, adapted to the rings: a quarter of a ring per nap is too much, a hundredth is little. */
static int64_t nap_of(rb_log_inside *in)
{
    if (in->largest_share > 32)
        in->nap_ns /= 2;
    else if (in->largest_share < 4)
        in->nap_ns += in->nap_ns / 4;
    in->nap_ns = in->nap_ns < NAP_LEAST_NS ? NAP_LEAST_NS : in->nap_ns;
    in->nap_ns = in->nap_ns > NAP_MOST_NS ? NAP_MOST_NS : in->nap_ns;
    in->largest_share = 0;
    return in->nap_ns;
}

/* True if a ring rang, or rb_bell_call() was called, before `until`. */
static bool spin(const rb_log_inside *in, int64_t until)
{
    do {
        for (int i = 0; i < SPIN_LOOKS; i++) {
            if (rb_bell_rung(in->bell, false) ||
                atomic_load_explicit(&in->bell->called, memory_order_relaxed) != 0)
                return true;
            PAUSE();
        }
    } while (rb_log_now() < until);
    return false;
}

static int64_t at_most(int64_t ns, int64_t limit)
{
    return ns < limit ? ns : limit;
}

static void rest(rb_log *log, int64_t deadline)
{
    rb_log_inside *in = log->inside;
    int64_t now = rb_log_now(), pause = at_most(deadline - now, IDLE_NS);
    if (log->due_ns != INT64_MAX)
        pause = at_most(pause, log->due_ns - now);
    pause = at_most(pause, idle_ns(log, now));
    if (pause <= 0 || rb_log_hungry(log))
        return;
    if (now - in->urgent_at < 4 * log->spin_ns && spin(in, now + at_most(pause, log->spin_ns)))
        return;
    if (now - in->lazy_at < LAZY_FOR_NS) {
        log->naps++;
        rb_bell_sleep(in->bell, RB_BELL_NAPS, at_most(pause, nap_of(in)));
    } else {
        log->sleeps++;
        rb_bell_sleep(in->bell, RB_BELL_SLEEPS, pause);
    }
}

int rb_log_run(rb_log *log, int64_t timeout_ns)
{
    int64_t now = rb_log_now(), deadline = now + timeout_ns;
    for (;;) {
        if (rb_bell_called(log->inside->bell))
            return RB_LOG_CALLED;
        int result = rb_log_round(log, now, 0);
        if (result != RB_LOG_DONE)
            return result;
        rest(log, deadline);
        if ((now = rb_log_now()) >= deadline)
            return RB_LOG_DONE;
    }
}
