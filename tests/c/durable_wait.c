/* SPDX-License-Identifier: Apache-2.0
 *
 * Wake-ups for the disk: threads in rb_durable_wait() and a thread that moves the durable word get each one.
 *
 *     durable_wait between    everything becomes durable between a waiter's look and its sleep
 *     durable_wait many N     N steps, three waiters, who look on or sleep, as their last waits took
 *
 * To be compiled with an eventcount.c that sleeps for up to an hour instead of a second, so that a lost
 * wake-up is not repaired, and that calls before_sleep() before its system call.  A waiter that is not woken
 * ends the program by SIGALRM.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ring/ring.h"

#ifndef PATIENCE_S
#define PATIENCE_S 30 /* of a machine under load, for what takes a second */
#endif
#define HOUR_NS 3600000000000ll
#define WAITERS 3
#define STEP 32

void before_sleep(void);

static _Alignas(4096) uint8_t ring[RB_HEADER_BYTES + RB_CAPACITY_MIN_BYTES], cursors[RB_CURSORS_BYTES],
    own[RB_CURSORS_BYTES];
static _Atomic uint64_t sleeps, done[WAITERS];
static uint64_t steps;
static bool between;

static void *make_durable(void *unused)
{
    rb_durable_store(ring, cursors, own, STEP);
    return unused;
}

/* In the waiter, which has looked, and has not gone to sleep. */
void before_sleep(void)
{
    atomic_fetch_add(&sleeps, 1);
    if (!between)
        return;
    pthread_t log;
    pthread_create(&log, NULL, make_durable, NULL);
    pthread_join(log, NULL);
}

static void must(bool holds, const char *what)
{
    if (!holds) {
        printf("%s\n", what);
        exit(1);
    }
}

static void *wait_for_each(void *which)
{
    _Atomic uint64_t *mine = which;
    for (uint64_t step = 1; step <= steps; step++) {
        must(rb_durable_wait(ring, step * STEP, HOUR_NS) == RB_OK, "not durable, and the wait is over");
        atomic_store(mine, step);
    }
    return NULL;
}

/* One step when all have seen the last, at once or a little later: so that waiters are met in all states. */
static void move_on(void)
{
    for (uint64_t step = 1; step <= steps; step++) {
        struct timespec pause = {.tv_nsec = (long)(step * 7919 % 40) * 1000};
        if (step % 3)
            nanosleep(&pause, NULL);
        rb_durable_store(ring, cursors, own, step * STEP);
        for (int i = 0; i < WAITERS; i++)
            while (atomic_load(&done[i]) < step)
                sched_yield();
    }
}

int main(int count, char **arguments)
{
    must(count >= 2, "between, or many N");
    between = strcmp(arguments[1], "between") == 0;
    must(rb_format(ring, RB_CAPACITY_MIN_BYTES, 1, 0, "ring", 0, 1) == RB_OK, "no ring");
    must(rb_format_cursors(cursors, ring) == RB_OK, "no cursors");
    alarm(PATIENCE_S);
    if (between) {
        must(rb_durable_wait(ring, STEP, HOUR_NS) == RB_OK, "not durable, and the wait is over");
        must(sleeps == 1, "it did not go to sleep");
        return 0;
    }
    steps = count > 2 ? strtoull(arguments[2], NULL, 10) : 1000;
    pthread_t waiters[WAITERS];
    for (int i = 0; i < WAITERS; i++)
        pthread_create(&waiters[i], NULL, wait_for_each, &done[i]);
    move_on();
    for (int i = 0; i < WAITERS; i++)
        pthread_join(waiters[i], NULL);
    printf("%llu sleeps\n", (unsigned long long)sleeps);
    return 0;
}
