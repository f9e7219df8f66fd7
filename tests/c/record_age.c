/* SPDX-License-Identifier: Apache-2.0
 *
 * Ages of records while the wall clock steps, the machine sleeps and the engine is idle.
 *
 *     record_age     checks itself; status 0
 *
 * To be linked with --wrap=clock_gettime.
 */
#include <string.h>
#include <time.h>

#include "mqtt/mqtt.h"
#include "must.h"

#define S 1000000000ull
#define DAY (86400 * S)
#define IN_2026 ((uint64_t)RB_CLOCK_SET_S * S + 2200 * DAY)
#define IN_1970 (50 * S)

static mq_engine engine;
static uint64_t steady_ns, asleep_ns, wall_ns;

int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    uint64_t ns = clock == CLOCK_BOOTTIME ? steady_ns + asleep_ns : steady_ns;
    *now = (struct timespec){.tv_sec = (time_t)(ns / S), .tv_nsec = (long)(ns % S)};
    return 0;
}

static void begin(uint64_t at_ns)
{
    memset(&engine, 0, sizeof engine);
    steady_ns = 1000 * S;
    asleep_ns = 10 * S;
    wall_ns = at_ns;
    mq_clock_set(&engine, steady_ns, wall_ns);
}

static void pass(uint64_t ns)
{
    steady_ns += ns;
    wall_ns += ns;
}

static void sleep_for(uint64_t ns)
{
    asleep_ns += ns;
    wall_ns += ns;
}

static void age_is(uint64_t timestamp_ns, uint64_t age_ns, const char *what)
{
    mq_clock_set(&engine, steady_ns, wall_ns);
    must(mq_age_ns(&engine, timestamp_ns) == age_ns, what);
}

/* A local producer writes records while the engine is idle, before and after the step. */
static void a_step_is_not_an_age(uint64_t step_ns)
{
    begin(IN_2026);
    pass(30 * S);
    uint64_t before_ns = wall_ns;
    pass(10 * S);
    wall_ns += step_ns;
    uint64_t after_ns = wall_ns;
    pass(20 * S);
    age_is(before_ns, 30 * S, "a step changes no age of a record before it");
    age_is(after_ns, 20 * S, "a step changes no age of a record after it");
    wall_ns -= 3 * step_ns;
    age_is(before_ns, 30 * S, "a second step changes no age of a record before both");
    age_is(after_ns, 20 * S, "a second step changes no age of a record between both");
    pass(5 * S);
    age_is(before_ns, 35 * S, "ages grow after steps");
}

static void sleep_is_an_age(uint64_t step_ns)
{
    begin(IN_2026);
    uint64_t then_ns = wall_ns;
    sleep_for(3600 * S);
    pass(5 * S);
    wall_ns += step_ns;
    age_is(then_ns, 3605 * S, "a record ages while the machine sleeps");
    wall_ns -= 3 * DAY;
    age_is(then_ns, 3605 * S, "a step after the sleep changes no age");
}

static void drift_is_no_step(void)
{
    begin(IN_2026);
    uint64_t then_ns = wall_ns;
    for (int i = 0; i < 2 * MQ_CLOCK_SPANS; i++) {
        wall_ns += S / 2;
        age_is(then_ns, wall_ns - then_ns, "drift is the wall clock's");
    }
    wall_ns += DAY;
    age_is(then_ns, wall_ns - then_ns - DAY, "drift does not use up the spans");
}

static void a_record_of_an_earlier_run_has_an_age(void)
{
    begin(IN_2026);
    pass(7 * S);
    age_is(IN_2026 - DAY, DAY + 7 * S, "it is counted by the wall clock");
    age_is(IN_1970, 7 * S, "it is counted from the start, if the clock was not set then");
    wall_ns += DAY;
    age_is(IN_2026 - DAY, DAY + 7 * S, "a step does not change it");
    age_is(IN_1970, 7 * S, "nor if the clock was not set");
    begin(IN_1970);
    age_is(IN_2026, 0, "a time in the future has no age");
    wall_ns = IN_2026 + 7 * S;
    age_is(IN_2026, 7 * S, "it has one as soon as the clock is set");
}

int main(void)
{
    const uint64_t steps[] = {DAY, -DAY, IN_1970 - IN_2026};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        a_step_is_not_an_age(steps[i]);
        sleep_is_an_age(steps[i]);
    }
    sleep_is_an_age(0);
    drift_is_no_step();
    a_record_of_an_earlier_run_has_an_age();
    return 0;
}
