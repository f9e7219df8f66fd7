/* SPDX-License-Identifier: Apache-2.0
 *
 * Clocks, and the pause of a loop that polls.
 */
#ifndef BRIM_CLOCK_H
#define BRIM_CLOCK_H

#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#define RB_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RB_PAUSE() __asm__ volatile("yield")
#else
#define RB_PAUSE() ((void)0)
#endif

static inline int64_t rb_clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static inline int64_t rb_now_ns(void)
{
    return rb_clock_ns(CLOCK_MONOTONIC);
}

static inline uint64_t rb_now_ms(void)
{
    return (uint64_t)rb_now_ns() / 1000000;
}

#endif
