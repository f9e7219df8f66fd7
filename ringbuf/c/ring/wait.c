/* SPDX-License-Identifier: Apache-2.0
 *
 * Waits of readers, of publishers for the disk and of writers for room; return of memory.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ring/ring.h"
#include "base/clock.h"

#define RECHECK_NS 1000000000ll
#define BACKOFF_NS 200000ll /* polling interval of readers without a slot, and of writers without room */
#define SPIN_MAX_NS 250000ll /* longest spin of a publisher that waits for the disk */
#define SPIN_CHECKS 32       /* checks of the ring between two reads of the clock */

static int64_t deadline_after(int64_t timeout_ns)
{
    int64_t now = rb_now_ns();
    return timeout_ns > INT64_MAX - now ? INT64_MAX : now + timeout_ns;
}

static struct timespec timespec_of(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / 1000000000ll, .tv_nsec = ns % 1000000000ll};
}

static int64_t at_most(int64_t ns, int64_t limit)
{
    return ns < limit ? ns : limit;
}

int rb_backoff(int64_t ns)
{
    struct timespec time = timespec_of(ns);
    return nanosleep(&time, NULL) != 0 && errno == EINTR ? RB_INTERRUPTED : RB_OK;
}

/* Announce the sleep of a reader; the caller then checks the ring again. */
static uint32_t prepare(rb_reader *reader)
{
    return rb_prepare(&reader->header->wake, reader->sleepers, reader->sleeper_bit);
}

static int spin(rb_reader *reader, int64_t until)
{
    int result;
    do {
        for (int i = 0; i < SPIN_CHECKS; i++) {
            if ((result = rb_peek(reader)) != RB_EMPTY)
                return result;
            RB_PAUSE();
        }
    } while (rb_now_ns() < until);
    return RB_EMPTY;
}

int rb_reader_wait(rb_reader *reader, int64_t spin_ns, int64_t timeout_ns)
{
    int result = rb_peek(reader);
    if (result != RB_EMPTY)
        return result;
    int64_t deadline = deadline_after(timeout_ns), now = rb_now_ns();
    if (spin_ns > 0 && (result = spin(reader, at_most(deadline, now + spin_ns))) != RB_EMPTY)
        return result;
    while ((now = rb_now_ns()) < deadline) {
        int64_t left = at_most(deadline - now, RECHECK_NS);
        int slept;
        if (reader->slot == NULL) {
            slept = rb_backoff(at_most(left, BACKOFF_NS));
        } else {
            uint32_t seen = prepare(reader);
            if ((result = rb_peek(reader)) != RB_EMPTY)
                return result;
            slept = rb_wait(&reader->header->wake, seen, left);
        }
        if ((result = rb_peek(reader)) != RB_EMPTY)
            return result;
        if (slept != RB_OK)
            return slept;
    }
    return RB_TIMEOUT;
}

/* ---- many readers at once ---- */

#define WAITERS_MAX 128
#define MANY_BACKOFF_NS 1000000ll /* interval of checks of readers beyond WAITERS_MAX */
#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

struct waiter { /* struct futex_waitv of Linux 5.16, which older headers lack */
    uint64_t value, address;
    uint32_t flags, reserved;
};
#define WAITER_32_BITS 2u

static int first_ready(rb_reader **readers, int count)
{
    for (int i = 0; i < count; i++)
        if (rb_peek(readers[i]) != RB_EMPTY)
            return i;
    return -1;
}

static int waitv(struct waiter *waiters, int count, int64_t ns)
{
    struct timespec time;
    if (count == 1) /* works on every Linux */
        return rb_wait((const _Atomic uint32_t *)(uintptr_t)waiters->address, (uint32_t)waiters->value, ns);
    time = timespec_of(rb_now_ns() + ns);
    if (syscall(SYS_futex_waitv, waiters, count, 0, &time, CLOCK_MONOTONIC) >= 0)
        return RB_OK;
    if (errno == ENOSYS || errno == EPERM) /* Linux before 5.16, or a sandbox without the call */
        return rb_backoff(at_most(ns, BACKOFF_NS));
    return errno == EINTR ? RB_INTERRUPTED : RB_OK;
}

int rb_readers_wait(rb_reader **readers, int count, uint32_t *interrupts, uint32_t seen, int64_t timeout_ns)
{
    struct waiter waiters[WAITERS_MAX];
    int64_t deadline = deadline_after(timeout_ns), now, longest = RECHECK_NS;
    const _Atomic uint32_t *interrupts_now = (const _Atomic uint32_t *)interrupts;
    while ((now = rb_now_ns()) < deadline) {
        int ready, used = 0;
        for (int i = 0; i < count; i++) {
            if (readers[i]->slot == NULL) {
                longest = BACKOFF_NS;
                continue;
            }
            if (used == WAITERS_MAX - 1) { /* the last one is for interrupts */
                longest = at_most(longest, MANY_BACKOFF_NS);
                continue;
            }
            waiters[used++] = (struct waiter){.value = prepare(readers[i]),
                                              .address = (uintptr_t)&readers[i]->header->wake,
                                              .flags = WAITER_32_BITS};
        }
        waiters[used++] = (struct waiter){
            .value = seen, .address = (uintptr_t)interrupts_now, .flags = WAITER_32_BITS};
        if (atomic_load_explicit(interrupts_now, memory_order_acquire) != seen) /* rb_readers_interrupt() */
            return count;
        if ((ready = first_ready(readers, count)) >= 0)
            return ready;
        int slept = waitv(waiters, used, at_most(deadline - now, longest));
        if ((ready = first_ready(readers, count)) >= 0)
            return ready;
        if (slept != RB_OK)
            return slept;
    }
    return RB_TIMEOUT;
}

void rb_readers_interrupt(uint32_t *interrupts)
{
    rb_wake((_Atomic uint32_t *)interrupts); /* pairs with the acquire in rb_readers_wait() */
}

/* ---- a publisher that waits for the disk ---- */

/* Spin while the disk is about to answer.  A wake-up by the kernel takes a good part of the time of a sync,
 * and the log's thread would go to sleep meanwhile.  A thread with long waits does not spin, nor does a
 * machine with one processor, which the log's thread needs. */
static bool durable_soon(const rb_header *header, uint64_t position, int64_t until)
{
    static _Atomic long processors;
    long count = atomic_load_explicit(&processors, memory_order_relaxed);
    if (count == 0)
        atomic_store_explicit(&processors, count = sysconf(_SC_NPROCESSORS_ONLN), memory_order_relaxed);
    if (count < 2)
        return false;
    do {
        for (int i = 0; i < SPIN_CHECKS; i++) {
            /* pairs with the release in rb_durable_store() */
            if (atomic_load_explicit(&header->durable, memory_order_acquire) >= position)
                return true;
            RB_PAUSE();
        }
    } while (rb_now_ns() < until);
    return false;
}

static int durable_within(rb_header *header, uint64_t position, int64_t until)
{
    for (int64_t now; (now = rb_now_ns()) < until;) {
        uint32_t seen = rb_prepare(&header->durable_wake, &header->durable_sleepers, 1);
        /* all three pair with the release in rb_durable_store() */
        if (atomic_load_explicit(&header->durable, memory_order_acquire) >= position)
            return RB_OK;
        int slept = rb_wait(&header->durable_wake, seen, until - now);
        if (slept != RB_OK && atomic_load_explicit(&header->durable, memory_order_acquire) < position)
            return slept;
    }
    return atomic_load_explicit(&header->durable, memory_order_acquire) >= position ? RB_OK : RB_TIMEOUT;
}

int rb_durable_wait(void *memory, uint64_t position, int64_t timeout_ns)
{
    rb_header *header = memory;
    if (atomic_load_explicit(&header->durable, memory_order_acquire) >= position) /* rb_durable_store() */
        return RB_OK;
    static _Thread_local int64_t took_ns; /* moving average of this thread's waits */
    int64_t started = rb_now_ns(), until = deadline_after(timeout_ns);
    bool spins = took_ns <= SPIN_MAX_NS;
    int result = RB_OK;
    if (!spins || !durable_soon(header, position, at_most(until, started + SPIN_MAX_NS)))
        result = durable_within(header, position, until);
    took_ns += (rb_now_ns() - started - took_ns) / 4;
    return result;
}

/* ---- a writer that waits for room ---- */

int rb_writer_wait(rb_writer *writer, uint64_t length, uint32_t prefix, int64_t timeout_ns)
{
    int64_t deadline = deadline_after(timeout_ns);
    for (;;) {
        int result = rb_can_claim(writer, length, prefix);
        if (result != RB_FULL)
            return result;
        int64_t now = rb_now_ns();
        if (now >= deadline)
            return RB_TIMEOUT;
        if (rb_backoff(at_most(deadline - now, BACKOFF_NS)) != RB_OK)
            return RB_INTERRUPTED;
    }
}

/* ---- memory ---- */

/* madvise() rounds a length up to whole pages, up to 64 KiB on aarch64: it must get no other memory. */
void rb_memory_clear(void *memory, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)memory, end = begin + bytes;
    uintptr_t first = (begin + page - 1) & ~(page - 1), last = end & ~(page - 1);
    if (first >= last || madvise((void *)first, last - first, MADV_DONTNEED) != 0) /* locked memory */
        first = last = end;
    memset(memory, 0, first - begin);
    memset((void *)last, 0, end - last);
}
