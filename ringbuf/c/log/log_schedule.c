/* SPDX-License-Identifier: Apache-2.0
 *
 * Times of writes, syncs and sleeps.
 *
 * Records that arrive during a sync form the next round, so a ring of durability `disk` needs no timer.
 * While rings of durability `interval` get records, they are read after every backoff (0.5 to 16 ms), not
 * after a wake-up.  After LAZY_FOR_NS without such records the log sleeps, and their writers wake it.  A
 * writer without room wakes it at any time (log_wakeup.h).  After a round with `disk` records the thread
 * spins for spin_ns before it sleeps, because a publisher that got its acknowledgement often publishes
 * next.
 */
#include "log/log.h"

#include <stdlib.h>
#include <string.h>

#define BACKOFF_MIN_NS 500000
#define BACKOFF_MAX_NS 16000000 /* each end of a backoff may interrupt a publisher and cool its caches */
#define LAZY_FOR_NS 100000000ll /* after this time without records, backoffs for interval rings end */
#define IDLE_NS 60000000000ll
#define SPIN_LOOKS 32
#define SMALL_PARTS 16 /* a sync of one part of a step takes about as long as one of nothing */
#define ROUND_NS 100000000ll /* least length of a full round; its acknowledgements wait for two at most */

rb_log *rb_log_new(rb_wakeup *wakeup)
{
    rb_log *log = calloc(1, sizeof *log);
    rb_log_inside *in = calloc(1, sizeof *in);
    rb_log_ring **moved = calloc(RB_WAKEUP_RINGS, sizeof *moved);
    if (log == NULL || in == NULL || moved == NULL) {
        free(log);
        free(in);
        free(moved);
        return NULL;
    }
    log->inside = in;
    in->moved = moved;
    in->wakeup = wakeup;
    in->backoff_ns = BACKOFF_MIN_NS;
    in->lazy_at = in->urgent_at = -LAZY_FOR_NS;
    in->disk.descriptor = -1;
    in->fits_bytes = UINT64_MAX;
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

void rb_log_enter(rb_log *log)
{
    rb_log_inside *in = log->inside;
    uint64_t waiting = log->extents_queued - log->extents_synced;
    pthread_mutex_lock(&in->lock);
    if (waiting > 0)
        memmove(in->list, rb_log_extent_at(log, log->extents_synced), waiting * sizeof *in->list);
    in->first = log->extents_synced;
    in->synced_end = log->end;
    pthread_mutex_unlock(&in->lock);
    rb_log_update_deadlines(log);
    rb_disk_enter(log);
}

void rb_log_end(rb_log *log)
{
    for (uint64_t i = log->extents_synced; i < log->extents_written; i++)
        log->rewritten_bytes += extent_bytes(rb_log_extent_at(log, i));
    log->extents_written = log->extents_synced;
    rb_direct_close(log);
    log->descriptor = -1;
    log->base = log->proven = log->durable_position;
    log->end = log->capacity = 0;
    log->inside->short_of_memory = false;
    rb_log_update_deadlines(log);
}

/* Time until the end of the log must be proven; never while records wait for a sync. */
static int64_t idle_ns(const rb_log *log, int64_t now)
{
    if (log->proven == log->durable_position || log->extents_synced < log->extents_queued)
        return INT64_MAX;
    return log->active_at + log->prove_after_ns - now;
}

/* Adapt the next rounds to a disk that wrote and synced `bytes` in `took_ns`: a flood into one ring must not
 * delay the acknowledgements of others by rounds that the disk cannot write in time.  A shorter round does
 * not make a sync shorter: at least half of a round is left for its writes. */
static void measure(rb_log *log, uint64_t bytes, int64_t took_ns)
{
    rb_log_inside *in = log->inside;
    int64_t wanted = 2 * in->sync_ns > ROUND_NS ? 2 * in->sync_ns : ROUND_NS;
    uint64_t fits = bytes * (uint64_t)(wanted / 1000) / (uint64_t)(took_ns / 1000 + 1);
    in->fits_bytes = fits > log->step_bytes ? fits : log->step_bytes;
}

/* Sync, and measure the time of a sync that has little to write. */
static int sync_measured(rb_log *log, int64_t now)
{
    uint64_t bytes = log->base + log->end - log->durable_position;
    int64_t started = rb_now_ns();
    int result = rb_log_sync(log, now);
    if (bytes > 0 && bytes <= log->step_bytes / SMALL_PARTS)
        log->inside->sync_ns += (rb_now_ns() - started - log->inside->sync_ns) / 4;
    return result;
}

int rb_log_round(rb_log *log, int64_t now, int take, int sync)
{
    uint64_t total = 0, taken, fits = log->inside->fits_bytes;
    uint64_t limit = fits < log->round_bytes ? fits : log->round_bytes;
    int64_t started = rb_now_ns();
    int result;
    log->rounds++;
    do {
        taken = take ? rb_log_take(log, now, log->step_bytes) : 0;
        result = rb_log_write(log);
        total += taken;
    } while (result == RB_LOG_DONE && taken >= log->step_bytes && total < limit);
    if (result == RB_LOG_FAILED)
        return result;
    bool sync_requested = sync && log->extents_synced < log->extents_queued;
    if (result == RB_LOG_FULL || sync_requested || log->due_ns <= now) {
        int synced = sync_measured(log, now);
        if (result != RB_LOG_FULL || synced == RB_LOG_FAILED)
            result = synced;
        if (total >= limit) /* shorter ones say little about the disk */
            measure(log, total, rb_now_ns() - started);
    }
    if (log->troubles && (result == RB_LOG_DONE || result == RB_LOG_MOVED))
        return RB_LOG_TROUBLE;
    return result == RB_LOG_DONE && idle_ns(log, now) <= 0 ? rb_log_prove(log, NULL, 0) : result;
}

/* ---- sleep ---- */

/* Length of a backoff, adapted to the rings: halved if one took more than an eighth of its ring, a quarter
 * longer if none took a 64th. */
static int64_t backoff_of(rb_log_inside *in)
{
    if (in->largest_share > 32)
        in->backoff_ns /= 2;
    else if (in->largest_share < 4)
        in->backoff_ns += in->backoff_ns / 4;
    in->backoff_ns = in->backoff_ns < BACKOFF_MIN_NS ? BACKOFF_MIN_NS : in->backoff_ns;
    in->backoff_ns = in->backoff_ns > BACKOFF_MAX_NS ? BACKOFF_MAX_NS : in->backoff_ns;
    in->largest_share = 0;
    return in->backoff_ns;
}

/* True if a ring has signalled, or rb_wakeup_call() was called, before `until`. */
static bool spin(const rb_log_inside *in, int64_t until)
{
    do {
        for (int i = 0; i < SPIN_LOOKS; i++) {
            if (rb_wakeup_is_set(in->wakeup, false) ||
                atomic_load_explicit(&in->wakeup->called, memory_order_relaxed) != 0)
                return true;
            RB_PAUSE();
        }
    } while (rb_now_ns() < until);
    return false;
}

static int64_t at_most(int64_t ns, int64_t limit)
{
    return ns < limit ? ns : limit;
}

int64_t rb_log_pause_ns(const rb_log *log, int64_t now)
{
    int64_t pause = at_most(IDLE_NS, idle_ns(log, now));
    if (log->due_ns != INT64_MAX)
        pause = at_most(pause, log->due_ns - now);
    return pause < 0 || rb_log_pending(log) ? 0 : pause;
}

static void sleep_until_due(rb_log *log, int64_t deadline)
{
    rb_log_inside *in = log->inside;
    int64_t now = rb_now_ns(), pause = at_most(deadline - now, rb_log_pause_ns(log, now));
    if (pause <= 0)
        return;
    if (now - in->urgent_at < 4 * log->spin_ns && spin(in, now + at_most(pause, log->spin_ns)))
        return;
    if (now - in->lazy_at < LAZY_FOR_NS) {
        log->backoffs++;
        rb_wakeup_sleep(in->wakeup, RB_WAKEUP_BACKOFF, at_most(pause, backoff_of(in)));
    } else {
        log->sleeps++;
        rb_wakeup_sleep(in->wakeup, RB_WAKEUP_SLEEPS, pause);
    }
}

int rb_log_run(rb_log *log, int64_t timeout_ns)
{
    int64_t now = rb_now_ns(), deadline = now + timeout_ns;
    for (;;) {
        if (rb_wakeup_called(log->inside->wakeup))
            return RB_LOG_CALLED;
        int result = rb_log_round(log, now, 1, 0);
        if (result != RB_LOG_DONE)
            return result;
        sleep_until_due(log, deadline);
        if ((now = rb_now_ns()) >= deadline)
            return RB_LOG_DONE;
    }
}
