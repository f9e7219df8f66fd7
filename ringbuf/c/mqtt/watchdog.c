/* SPDX-License-Identifier: Apache-2.0
 *
 * Watchdog: checks that the polling thread runs and that waiting clients are served.
 *
 * mq_watchdog_watch() runs on its own thread, without the GIL, so that it also detects a thread that keeps
 * the GIL.  It reads words that the loop writes (mq_pulse) and no other part of the engine, except counters.
 *
 *   stuck      the pulse is even, so the thread works, in C or in Python, and has been in this one round for
 *              `report_ticks`.  Then `signal` is raised once, and the stacks of its handler go to the log.
 *              After `exit_ticks` the process ends with `status`.  If the thread continues: MQ_WATCH_STUCK.
 *   unserved   clients have sent input or wait for output, only the broker can continue, and for
 *              `serve_ticks` no byte was read from or sent to any client: MQ_WATCH_UNSERVED, repeated after
 *              as many ticks.  MQ_WATCH_SERVED when that is over.
 *
 * Time is counted in ticks of this thread and never read from a clock.  In a stopped process (SIGSTOP), a
 * suspended machine or an overloaded one, this thread gets no more turns than the polling thread.
 *
 * No output waits long for its reader: a full pipe must not keep a process that has to end.
 */
#include "mqtt/mqtt.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { OUTPUT_WAIT_MS = 1000, PART_BYTES = 512 }; /* a pipe with room takes PIPE_BUF bytes at once */

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED); /* each word is compared only with itself */
}

static bool is_over(const mq_watchdog *watchdog)
{
    struct pollfd over = {.fd = watchdog->over_fd, .events = POLLIN};
    return poll(&over, 1, (int)watchdog->tick_ms) > 0;
}

static bool put(const char *text, size_t size)
{
    struct pollfd output = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&output, 1, OUTPUT_WAIT_MS) > 0 && write(STDERR_FILENO, text, size) > 0;
}

void mq_watchdog_show_stacks(const mq_watchdog *watchdog)
{
    char part[PART_BYTES];
    ssize_t size = 0;
    for (off_t at = 0; (size = pread(watchdog->stacks_fd, part, sizeof(part), at)) > 0; at += size) {
        if (!put(part, (size_t)size))
            break;
    }
    if (ftruncate(watchdog->stacks_fd, 0) != 0)
        return; /* the next report repeats this one */
}

/* End the process at once, as with kill -9: acknowledged records are in the rings, and no other state of this
 * process is reliable. */
static void end(const mq_watchdog *watchdog)
{
    char text[PART_BYTES];
    int size = snprintf(text, sizeof(text), "the MQTT thread is stuck: the process ends with status %d\n",
                        watchdog->status);
    put(text, (size_t)size);
    _exit(watchdog->status);
}

/* True if the thread was stuck and runs again. */
static bool is_back(mq_watchdog *watchdog, uint64_t pulse)
{
    bool stays = pulse == watchdog->seen_pulse && pulse != 0 && pulse % 2 == 0;
    uint32_t was = watchdog->stuck_ticks;
    watchdog->seen_pulse = pulse;
    watchdog->stuck_ticks = stays ? was + 1 : 0;
    if (watchdog->stuck_ticks == watchdog->report_ticks) {
        raise(watchdog->signal);
        mq_watchdog_show_stacks(watchdog);
    }
    if (watchdog->stuck_ticks == watchdog->exit_ticks)
        end(watchdog);
    watchdog->was_stuck_ticks = was;
    return !stays && was >= watchdog->report_ticks;
}

/* Check the service of clients.  MQ_WATCH_OVER: no change. */
static int serving(mq_watchdog *watchdog, uint64_t waiting, uint64_t bytes)
{
    bool stays = waiting > 0 && bytes == watchdog->seen_bytes, was = watchdog->unserved_since_ticks > 0;
    watchdog->seen_bytes = bytes;
    watchdog->unserved_ticks = stays ? watchdog->unserved_ticks + 1 : 0;
    if (!stays) {
        watchdog->unserved_since_ticks = 0;
        return was ? MQ_WATCH_SERVED : MQ_WATCH_OVER;
    }
    if (watchdog->unserved_ticks < watchdog->serve_ticks)
        return MQ_WATCH_OVER;
    watchdog->unserved_since_ticks += watchdog->unserved_ticks;
    watchdog->unserved_ticks = 0;
    return MQ_WATCH_UNSERVED;
}

int mq_watchdog_watch(const mq_engine *engine, mq_watchdog *watchdog)
{
    while (!is_over(watchdog)) {
        if (is_back(watchdog, load(&engine->pulse.beat)))
            return MQ_WATCH_STUCK;
        uint64_t bytes = load(&engine->counters.bytes_in) + load(&engine->counters.bytes_out);
        int seen = serving(watchdog, load(&engine->pulse.waiting), bytes);
        if (seen != MQ_WATCH_OVER)
            return seen;
    }
    return MQ_WATCH_OVER;
}

void mq_pulse_beat(mq_engine *engine)
{
    __atomic_store_n(&engine->pulse.beat, engine->pulse.beat + 1, __ATOMIC_RELAXED); /* for load() */
}

void mq_pulse_waiting(mq_engine *engine, uint64_t connections)
{
    __atomic_store_n(&engine->pulse.waiting, connections, __ATOMIC_RELAXED); /* for load() */
}
