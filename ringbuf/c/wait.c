/* SPDX-License-Identifier: Apache-2.0
 *
 * Waits and wake-ups by futex (Linux), and return of memory: the only system calls of ringbuf.
 *
 * FUTEX_PRIVATE is not used, because several processes map the file with the word.  A wait only reads the
 * word, so a read-only mapping is sufficient.  Every wait is bounded: a lost wake-up costs at most
 * RECHECK_NS.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ring.h"

#define RECHECK_NS 1000000000ll
#define NAP_NS 200000ll  /* polling interval of readers without a slot, and of writers that wait for room */
#define LOOK_NS 250000ll /* longest spin of a publisher that waits for the disk */
#define SPIN_LOOK 32     /* checks of the ring between two reads of the clock */

#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() ((void)0)
#endif

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static int64_t deadline_after(int64_t timeout_ns)
{
    int64_t now = now_ns();
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

int rb_nap(int64_t ns)
{
    struct timespec time = timespec_of(ns);
    return nanosleep(&time, NULL) != 0 && errno == EINTR ? RB_INTERRUPTED : RB_OK;
}

void rb_futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

int rb_futex_wait(const _Atomic uint32_t *word, uint32_t seen, int64_t ns)
{
    struct timespec time = timespec_of(ns);
    long result = syscall(SYS_futex, word, FUTEX_WAIT, seen, &time, NULL, 0);
    return result != 0 && errno == EINTR ? RB_INTERRUPTED : RB_OK;
}

/* Announce that this reader sleeps.  The caller then checks the ring again.  If the check finds no record,
 * the writer's next check of the sleepers finds this reader: this fence pairs with those in rb_end_publish()
 * and rb_durable_store(). */
static void say_asleep(rb_reader *reader)
{
    atomic_fetch_or_explicit(reader->sleepers, reader->sleeper_bit, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst);
}

static int spin(rb_reader *reader, int64_t until)
{
    int result;
    do {
        for (int i = 0; i < SPIN_LOOK; i++) {
            if ((result = rb_peek(reader)) != RB_EMPTY)
                return result;
            PAUSE();
        }
    } while (now_ns() < until);
    return RB_EMPTY;
}

int rb_reader_wait(rb_reader *reader, int64_t spin_ns, int64_t timeout_ns)
{
    int result = rb_peek(reader);
    if (result != RB_EMPTY)
        return result;
    int64_t deadline = deadline_after(timeout_ns), now = now_ns();
    if (spin_ns > 0 && (result = spin(reader, at_most(deadline, now + spin_ns))) != RB_EMPTY)
        return result;
    while ((now = now_ns()) < deadline) {
        int64_t left = at_most(deadline - now, RECHECK_NS);
        int slept;
        if (reader->slot == NULL) {
            slept = rb_nap(at_most(left, NAP_NS));
        } else {
            uint32_t seen = atomic_load_explicit(&reader->header->wake, memory_order_acquire); /* rb_wake() */
            say_asleep(reader);
            if ((result = rb_peek(reader)) != RB_EMPTY)
                return result;
            slept = rb_futex_wait(&reader->header->wake, seen, left);
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
#define MANY_NAP_NS 1000000ll /* interval of checks of readers beyond WAITERS_MAX */
#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

struct waiter { /* struct futex_waitv of Linux 5.16, which older headers lack */
    uint64_t value, address;
    uint32_t flags, reserved;
};
#define WAITER_32_BITS 2u

static int anybody_ready(rb_reader **readers, int count)
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
        return rb_futex_wait((const _Atomic uint32_t *)(uintptr_t)waiters->address, (uint32_t)waiters->value,
                             ns);
    clock_gettime(CLOCK_MONOTONIC, &time);
    int64_t until = time.tv_sec * 1000000000ll + time.tv_nsec + ns;
    time = timespec_of(until);
    if (syscall(SYS_futex_waitv, waiters, count, 0, &time, CLOCK_MONOTONIC) >= 0)
        return RB_OK;
    if (errno == ENOSYS || errno == EPERM) /* Linux before 5.16, or a sandbox without the call */
        return rb_nap(at_most(ns, NAP_NS));
    return errno == EINTR ? RB_INTERRUPTED : RB_OK;
}

int rb_readers_wait(rb_reader **readers, int count, uint32_t *doorbell, uint32_t seen, int64_t timeout_ns)
{
    struct waiter waiters[WAITERS_MAX];
    int64_t deadline = deadline_after(timeout_ns), now, naps = RECHECK_NS;
    _Atomic uint32_t *bell = (_Atomic uint32_t *)doorbell;
    while ((now = now_ns()) < deadline) {
        int ready, used = 0;
        for (int i = 0; i < count; i++) {
            if (readers[i]->slot == NULL) {
                naps = NAP_NS;
                continue;
            }
            if (used == WAITERS_MAX - 1) { /* the last one is for the doorbell */
                naps = at_most(naps, MANY_NAP_NS);
                continue;
            }
            const _Atomic uint32_t *word = &readers[i]->header->wake;
            waiters[used++] = (struct waiter){
                .value = atomic_load_explicit(word, memory_order_acquire), /* rb_wake() */
                .address = (uintptr_t)word,
                .flags = WAITER_32_BITS};
            say_asleep(readers[i]);
        }
        waiters[used++] = (struct waiter){.value = seen, .address = (uintptr_t)bell, .flags = WAITER_32_BITS};
        if (atomic_load_explicit(bell, memory_order_acquire) != seen) /* rb_doorbell_ring() */
            return count;
        if ((ready = anybody_ready(readers, count)) >= 0)
            return ready;
        int slept = waitv(waiters, used, at_most(deadline - now, naps));
        if ((ready = anybody_ready(readers, count)) >= 0)
            return ready;
        if (slept != RB_OK)
            return slept;
    }
    return RB_TIMEOUT;
}

void rb_doorbell_ring(uint32_t *doorbell)
{
    _Atomic uint32_t *bell = (_Atomic uint32_t *)doorbell;
    /* pairs with the acquire in rb_readers_wait() */
    atomic_fetch_add_explicit(bell, 1, memory_order_release);
    rb_futex_wake(bell);
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
        for (int i = 0; i < SPIN_LOOK; i++) {
            /* pairs with the release in rb_durable_store() */
            if (atomic_load_explicit(&header->durable, memory_order_acquire) >= position)
                return true;
            PAUSE();
        }
    } while (now_ns() < until);
    return false;
}

static int durable_within(rb_header *header, uint64_t position, int64_t until)
{
    for (int64_t now; (now = now_ns()) < until;) {
        uint64_t durable = atomic_load_explicit(&header->durable,
                                                memory_order_acquire); /* rb_durable_store() */
        if (durable >= position)
            return RB_OK;
        int slept = rb_futex_wait(rb_low_half(&header->durable), (uint32_t)durable,
                                  at_most(until - now, RECHECK_NS));
        /* both pair with the release in rb_durable_store() */
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
    int64_t started = now_ns(), until = deadline_after(timeout_ns);
    bool looks = took_ns <= LOOK_NS;
    int result = RB_OK;
    if (!looks || !durable_soon(header, position, at_most(until, started + LOOK_NS))) {
        atomic_fetch_add_explicit(&header->durable_waiters, 1, memory_order_seq_cst);
        atomic_thread_fence(memory_order_seq_cst); /* pairs with the fence in rb_durable_store() */
        result = durable_within(header, position, until);
        atomic_fetch_sub_explicit(&header->durable_waiters, 1, memory_order_seq_cst);
    }
    took_ns += (now_ns() - started - took_ns) / 4;
    return result;
}

/* ---- a writer that waits for room ---- */

int rb_writer_wait(rb_writer *writer, uint64_t length, uint32_t prefix, int64_t timeout_ns)
{
    int64_t deadline = deadline_after(timeout_ns);
    for (;;) {
        int result = rb_room(writer, length, prefix);
        if (result != RB_FULL)
            return result;
        int64_t now = now_ns();
        if (now >= deadline)
            return RB_TIMEOUT;
        if (rb_nap(at_most(deadline - now, NAP_NS)) != RB_OK)
            return RB_INTERRUPTED;
    }
}

/* ---- memory ---- */

void rb_memory_clear(void *pages, size_t bytes)
{
    if (madvise(pages, bytes, MADV_DONTNEED) != 0) /* fails for locked memory */
        memset(pages, 0, bytes);
}
