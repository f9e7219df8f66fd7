/* SPDX-License-Identifier: Apache-2.0
 *
 * Wall clock for one timestamp per record: see wall_clock.h.
 */
#include "base/wall_clock.h"

#include <stdbool.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/clock.h"

#define STEP_NS 1000000ull           /* between two reads of the kernel's clock */
#define LATE_NS 250ull               /* duration of a read that was interrupted: it measures nothing */
#define MEASURE_MAX_NS 1000000000ull /* a longer time may contain a suspension of the machine */
#define SHORTER_BITS 14              /* a tick is taken 2^-14 too short */
#define AHEAD_NS 1000ull             /* more than the largest error of a measured tick in STEP_NS */
#define EVEN_BITS 9                  /* two measures of an even counter differ by less than 2^-9 */
#define TICK_MIN (1ull << 28)        /* 16 GHz */
#define TICK_MAX (1ull << 42)        /* 1 MHz */
#define FAILURES_MAX 8u              /* after these the counter is not used any more */

/* True if the counter is invariant: it has one rate at all clock speeds, and runs while the processor
 * sleeps. */
static bool never_stops(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007u, &a, &b, &c, &d) && (d >> 8 & 1u);
#elif defined(__aarch64__)
    return true; /* by the architecture */
#else
    return false;
#endif
}

static bool is_even(uint64_t tick, uint64_t last)
{
    uint64_t difference = tick > last ? tick - last : last - tick;
    return tick >= TICK_MIN && tick <= TICK_MAX && (last == 0 || difference <= tick >> EVEN_BITS);
}

static void measure(rb_wall_clock *clock, uint64_t passed, uint64_t passed_ns)
{
    if (passed_ns > MEASURE_MAX_NS) /* also at the first read */
        return;
    uint64_t tick = passed == 0 ? 0 : (passed_ns << 32) / passed;
    tick -= tick >> SHORTER_BITS;
    bool even = is_even(tick, clock->tick);
    clock->tick = even ? tick : 0;
    clock->failures = even ? 0 : clock->failures + 1;
}

uint64_t rb_wall_clock_read(rb_wall_clock *clock)
{
    if (clock->failures >= FAILURES_MAX)
        return (uint64_t)rb_clock_ns(CLOCK_REALTIME);
    if (clock->tick == 0 && clock->steady_ns != 0) { /* the first millisecond costs one read each time */
        uint64_t wall_ns = (uint64_t)rb_clock_ns(CLOCK_REALTIME);
        if (wall_ns - clock->ns < STEP_NS)
            return wall_ns;
    }
    uint64_t steady_ns = (uint64_t)rb_now_ns(), ticks = rb_ticks(),
             ns = (uint64_t)rb_clock_ns(CLOCK_REALTIME);
    uint64_t passed_ns = steady_ns - clock->steady_ns;
    if ((uint64_t)rb_now_ns() - steady_ns > LATE_NS) {
        clock->valid_ticks = 0;
        clock->failures++;
        return ns;
    }
    if (clock->steady_ns == 0 && !never_stops())
        clock->failures = FAILURES_MAX;
    if (passed_ns < STEP_NS)
        return ns;
    uint64_t ahead = ns;
    if (clock->tick != 0 && passed_ns <= MEASURE_MAX_NS)
        ahead = clock->ns + ((ticks - clock->ticks) * clock->tick >> 32);
    measure(clock, ticks - clock->ticks, passed_ns);
    clock->ticks = ticks;
    clock->ns = ahead - ns < AHEAD_NS ? ahead : ns; /* does not step back by an error of the last tick */
    clock->steady_ns = steady_ns;
    clock->valid_ticks = clock->tick == 0 ? 0 : (STEP_NS << 32) / clock->tick;
    return clock->ns;
}
