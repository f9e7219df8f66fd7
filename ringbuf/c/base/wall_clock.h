/* SPDX-License-Identifier: Apache-2.0
 *
 * Wall clock for one timestamp per record: nanoseconds since 1970, at half the cost of a read of the kernel's
 * clock, which waits for all earlier instructions.
 *
 * The kernel's clock is read once per millisecond.  Until the next read, the ticks of the processor's counter
 * are added.  Each read also measures the length of a tick, with an error of less than 0.3 us in a
 * millisecond.  It is taken a little too short, so that the clock is rather behind than ahead; it never steps
 * back because of such an error.
 *
 * Without a counter that runs evenly and never stops, the kernel's clock is read each time.  A step of the
 * kernel's clock shows within a millisecond.  Private memory, for one thread at a time.
 */
#ifndef BRIM_WALL_CLOCK_H
#define BRIM_WALL_CLOCK_H

#include <stdint.h>

#if defined(__x86_64__)
#include <x86intrin.h>
static inline uint64_t rb_ticks(void)
{
    return __rdtsc();
}
#elif defined(__aarch64__)
static inline uint64_t rb_ticks(void)
{
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
}
#else
static inline uint64_t rb_ticks(void)
{
    return 0;
}
#endif

typedef struct rb_wall_clock {    /* zeros: never read */
    uint64_t ticks, ns, steady_ns; /* counter, wall clock and monotonic clock at the last read */
    uint64_t valid_ticks;          /* the next read is due after these; 0: at once */
    uint64_t tick;                 /* length of a tick in 2^-32 ns, 0: unknown */
    uint32_t failures;             /* reads in a row that could not measure it */
} rb_wall_clock;

uint64_t rb_wall_clock_read(rb_wall_clock *clock);

static inline uint64_t rb_wall_ns(rb_wall_clock *clock)
{
    uint64_t passed = rb_ticks() - clock->ticks;
    if (passed >= clock->valid_ticks)
        return rb_wall_clock_read(clock);
    return clock->ns + (passed * clock->tick >> 32); /* less than STEP_NS * 2^32: no overflow */
}

#endif
