/* SPDX-License-Identifier: Apache-2.0
 *
 * The watchdog's eyes: is the thread that polls alive, and are clients served that wait?
 *
 * mq_watchdog_watch() runs on a thread of its own, without the GIL, so that it also sees a thread that keeps
 * the GIL. It reads words that the loop writes (mq_pulse), and nothing else of the engine.
 *
 *   stuck      the pulse is even, so the thread is at work, in C or in Python, and has been in this one round
 *              for `report_ticks`.  Then `signal` is raised once, whose handler writes all stacks to the log;
 *              after `exit_ticks` the process ends with `status`.  If the thread goes on, MQ_WATCH_STUCK.
 *   unserved   clients have sent something, or wait for an answer, only the broker can continue, and for
 *              `serve_ticks` nothing was read from any client nor sent: MQ_WATCH_UNSERVED, again after as
 * many ticks; MQ_WATCH_SERVED when that is over.
 *
 * Time is counted in ticks of this thread, never read from a clock: a process that was stopped (SIGSTOP), a
 * machine that was suspended, and one with too much to do have given this thread no more turns than the
 * other.
 */
#include "mqtt.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED); /* one word at a time is compared with itself */
}

static bool is_over(const mq_watchdog *dog)
{
    struct pollfd over = {.fd = dog->over_fd, .events = POLLIN};
    return poll(&over, 1, (int)dog->tick_ms) > 0;
}

/* At once, as by kill -9: what was acknowledged is in the rings, and nothing of this process can be relied
 * on. */
static void end(const mq_watchdog *dog)
{
    dprintf(STDERR_FILENO, "the MQTT thread is stuck: the process ends with status %d\n", dog->status);
    _exit(dog->status);
}

/* True: it was stuck, and runs again. */
static bool is_back(mq_watchdog *dog, uint64_t pulse)
{
    bool stays = pulse == dog->seen_pulse && pulse != 0 && pulse % 2 == 0;
    uint32_t was = dog->stuck_ticks;
    dog->seen_pulse = pulse;
    dog->stuck_ticks = stays ? was + 1 : 0;
    if (dog->stuck_ticks == dog->report_ticks)
        raise(dog->signal);
    if (dog->stuck_ticks == dog->exit_ticks)
        end(dog);
    dog->was_stuck_ticks = was;
    return !stays && was >= dog->report_ticks;
}

/* MQ_WATCH_OVER: nothing has changed. */
static int serving(mq_watchdog *dog, uint64_t waiting, uint64_t bytes)
{
    bool stays = waiting > 0 && bytes == dog->seen_bytes, was = dog->unserved_since_ticks > 0;
    dog->seen_bytes = bytes;
    dog->unserved_ticks = stays ? dog->unserved_ticks + 1 : 0;
    if (!stays) {
        dog->unserved_since_ticks = 0;
        return was ? MQ_WATCH_SERVED : MQ_WATCH_OVER;
    }
    if (dog->unserved_ticks < dog->serve_ticks)
        return MQ_WATCH_OVER;
    dog->unserved_since_ticks += dog->unserved_ticks;
    dog->unserved_ticks = 0;
    return MQ_WATCH_UNSERVED;
}

int mq_watchdog_watch(const mq_engine *engine, mq_watchdog *dog)
{
    while (!is_over(dog)) {
        if (is_back(dog, load(&engine->pulse.beat)))
            return MQ_WATCH_STUCK;
        uint64_t bytes = load(&engine->counters.bytes_in) + load(&engine->counters.bytes_out);
        int seen = serving(dog, load(&engine->pulse.waiting), bytes);
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
