/* SPDX-License-Identifier: Apache-2.0
 *
 * Crash points: a writer is stopped at every single instruction of what it does, killed there, and taken
 * over.
 *
 *     step SCENARIO      prints how many points passed; status 1 and a line that says what went wrong
 *
 * A child writes to a ring in shared memory.  The first is single-stepped by ptrace, which tells the
 * address of each instruction in turn.  Then, for each of them, another child runs up to it (a breakpoint;
 * loops come by more than once), and while it stands still, readers in the parent look at the ring; it is
 * killed, the parent takes the ring over, and writes on.  Every payload is a function of its offset, so
 * that whatever is read can be judged.
 *
 * x86-64 only: the breakpoint and the program counter are its.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ring/ring.h"

#define CAPACITY RB_CAPACITY_MIN_BYTES
#define RING_BYTES (RB_HEADER_BYTES + CAPACITY)
#define EPOCH 77
#define PAYLOAD_MAX 300
#define POINTS_MAX 20000
#define AHEAD 8 /* payloads made before the steps are counted */

static uint8_t *ring, *cursors;                                /* shared with the child */
static rb_cursors local_cursors;                               /* only a reader of prepare_gate() writes it */
static uint8_t base_ring[RING_BYTES], base_cursors[RB_CURSORS_BYTES]; /* as each child finds them */
static uint64_t base_offset, final_offset;                     /* before and after an undisturbed run */
static uint64_t place_of[4096],
    behind[4096]; /* of each offset: where it lies; where the one before it ends */
static uint8_t made[AHEAD][PAYLOAD_MAX];
static uint64_t address_of[POINTS_MAX]; /* of the instruction that comes next at each point */
static long point, points;
static const char *scenario_name;

__attribute__((format(printf, 1, 2), noreturn)) static void wrong(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("%s, point %ld: ", scenario_name, point);
    vprintf(format, list);
    printf("\n");
    va_end(list);
    exit(1);
}

static uint32_t payload_length(uint64_t offset)
{
    return (uint32_t)(8 + offset * 37 % (PAYLOAD_MAX - 8));
}

static uint32_t payload_make(uint64_t offset, uint8_t *out)
{
    uint32_t length = payload_length(offset);
    for (uint32_t i = 0; i < length; i++)
        out[i] = (uint8_t)(offset * 131 + i * 7 + 1);
    return length;
}

static void payloads_ready(uint64_t from)
{
    for (uint64_t offset = from; offset < from + AHEAD; offset++)
        payload_make(offset, made[offset % AHEAD]);
}

static void append_made(rb_writer *writer)
{
    static const char key[] = "plant/1/temperature";
    const rb_key it = {.bytes = key, .length = sizeof key - 1, .hash = 1};
    uint64_t offset = writer->offset;
    if (rb_append(writer, &it, made[offset % AHEAD], payload_length(offset), 0, 1000 + offset) != RB_OK)
        wrong("append refused");
}

/* ---- what the child does ---- */

static void run_one(rb_writer *writer)
{
    append_made(writer);
    rb_announce_end(writer);
}

static void run_many(rb_writer *writer)
{
    for (int i = 0; i < 3; i++)
        append_made(writer);
    rb_announce_end(writer);
}

/* Claims more than it commits, so that the word behind the record has just been written over; and aborts
 * first. */
static void run_claim(rb_writer *writer)
{
    uint8_t *room;
    rb_key key = {.bytes = ""};
    uint32_t length = payload_length(writer->offset);
    for (int i = 0; i < 2; i++) {
        if (rb_claim(writer, &key, PAYLOAD_MAX, 0, 5, &room) != RB_OK)
            wrong("claim refused");
        memset(room, 0xee, PAYLOAD_MAX);
        if (i == 0) {
            rb_abort(writer);
        } else {
            memcpy(room, made[writer->offset % AHEAD], length);
            rb_commit(writer, length, true);
        }
    }
    rb_announce_end(writer);
}

static void run_takeover(rb_writer *writer)
{
    if (rb_writer_open(writer, ring, RING_BYTES, cursors, &local_cursors) != RB_OK)
        wrong("take-over refused");
}

/* ---- how the ring looks before ---- */

static void publish(rb_writer *writer)
{
    payloads_ready(writer->offset);
    run_one(writer);
}

static void laps(rb_writer *writer, uint64_t until)
{
    while (writer->tail < until)
        publish(writer);
}

static void prepare_empty(rb_writer *writer)
{
    (void)writer;
}

static void prepare_lapped(rb_writer *writer)
{
    laps(writer, CAPACITY * 2 + 1000);
}

/* The next record does not fit before the end of the ring. */
static void prepare_wrap(rb_writer *writer)
{
    for (;;) {
        uint64_t span = rb_span(rb_payload_position(19, 0) + payload_length(writer->offset));
        uint64_t room = CAPACITY - (writer->tail & (CAPACITY - 1));
        if (writer->tail > CAPACITY && room < span)
            break;
        publish(writer);
    }
}

/* The next record needs more than is reserved. */
static void prepare_reserve(rb_writer *writer)
{
    laps(writer, CAPACITY + 20000);
    while (writer->reserve - writer->tail > 100)
        publish(writer);
}

/* A reader of the writing process holds a place nearly a ring back: there is room for four records, not for
 * a chunk. */
static void prepare_gate(rb_writer *writer)
{
    rb_reader reader;
    laps(writer, CAPACITY + 20000);
    rb_reader_open(&reader, writer->header, RING_BYTES, &local_cursors, 0, true);
    laps(writer, reader.cursor + CAPACITY - 1800);
}

static void prepare_wake(rb_writer *writer)
{
    laps(writer, 1000);
    writer->local_cursors->sleepers = 1;
    writer->cursors->sleepers = 1ull << 63 | 1;
}

/* A writer died in a batch: three records are there that no end tells of, and padding before the third. */
static void prepare_takeover(rb_writer *writer)
{
    prepare_wrap(writer);
    payloads_ready(writer->offset);
    for (int i = 0; i < 3; i++)
        append_made(writer);
}

static const struct scenario {
    const char *name;
    void (*prepare)(rb_writer *);
    void (*run)(rb_writer *);
    int unpublished; /* records that are there already, behind the end */
} scenarios[] = {
    {"first", prepare_empty, run_one, 0},      {"one", prepare_lapped, run_one, 0},
    {"many", prepare_lapped, run_many, 0},     {"claim", prepare_lapped, run_claim, 0},
    {"wrap", prepare_wrap, run_many, 0},       {"reserve", prepare_reserve, run_many, 0},
    {"gate", prepare_gate, run_many, 0},       {"wake", prepare_wake, run_one, 0},
    {"takeover", prepare_takeover, run_takeover, 3},
};

/* ---- what must hold at each point ---- */

static void judge(const rb_view *view)
{
    uint8_t expected[PAYLOAD_MAX];
    uint32_t length = payload_make(view->header.offset, expected);
    if (view->parts.payload_length != length ||
        memcmp(view->bytes + view->parts.payload_position, expected, length) != 0)
        wrong("record %llu is not what was published", (unsigned long long)view->header.offset);
}

/* Reads to the end; everything must be whole, checked, and in line. */
static void walk(rb_reader *reader, const char *who)
{
    rb_view view;
    int result;
    reader->verify = true;
    while ((result = rb_read(reader, &view)) == RB_OK)
        judge(&view);
    if (result != RB_EMPTY)
        wrong("the reader %s got result %d at offset %llu", who, result, (unsigned long long)reader->offset);
}

static rb_reader reader_at(bool oldest)
{
    rb_reader reader;
    if (rb_reader_open(&reader, ring, RING_BYTES, NULL, -1, false) != RB_OK)
        wrong("a reader cannot open the ring");
    if (oldest)
        rb_seek_oldest(&reader);
    return reader;
}

/* end must be a pair that was true once, and not too old. */
static void check_end(uint64_t committed)
{
    uint64_t position, offset;
    rb_end_read((rb_header *)ring, &position, &offset);
    if (offset < base_offset || offset > committed)
        wrong("the end says offset %llu; %llu are committed", (unsigned long long)offset,
              (unsigned long long)committed);
    if (position != place_of[offset % 4096] && position != behind[offset % 4096])
        wrong("the end says position %llu with offset %llu", (unsigned long long)position,
              (unsigned long long)offset);
}

/* A reader that holds an earlier record, and learns that it still stands, must find it intact. */
static void check_held(const rb_reader *holder, const rb_view *held)
{
    if (rb_reader_holds(holder, held->position)) {
        if (!rb_record_verifies(&held->header, &held->parts, held->bytes, EPOCH))
            wrong("a record that is still held has been written over");
        judge(held);
    }
}

static void check_gate(void)
{
    const rb_slot *slot = &local_cursors.slot[0];
    if (slot->state != RB_SLOT_BLOCKING)
        return;
    rb_reader reader = reader_at(false);
    reader.cursor = slot->cursor;
    reader.offset = slot->offset;
    walk(&reader, "that gates");
}

static void check_after(uint64_t committed, const rb_reader *watcher)
{
    rb_writer writer;
    int result = rb_writer_open(&writer, ring, RING_BYTES, cursors, &local_cursors);
    if (result != RB_OK)
        wrong("the ring cannot be taken over: %d", result);
    if (writer.offset != committed || writer.tail != watcher->cursor)
        wrong("the next writer goes on at offset %llu, position %llu; readers stand at %llu, %llu",
              (unsigned long long)writer.offset, (unsigned long long)writer.tail,
              (unsigned long long)committed, (unsigned long long)watcher->cursor);
    check_end(committed);
    publish(&writer);
    rb_reader after = *watcher;
    walk(&after, "that waited");
    if (after.offset != committed + 1)
        wrong("the record after the take-over has not come");
    for (uint64_t offset = base_offset; offset <= committed; offset++) {
        rb_reader seeker = reader_at(false);
        if (rb_seek_offset(&seeker, offset) != RB_OK || seeker.offset != offset)
            wrong("offset %llu is not found after the take-over", (unsigned long long)offset);
        walk(&seeker, "that sought");
    }
    check_gate();
    rb_reader oldest = reader_at(true);
    walk(&oldest, "from the oldest on");
    if (oldest.offset != committed + 1)
        wrong("the oldest reader ends at %llu", (unsigned long long)oldest.offset);
}

/* ---- the child ---- */

static void restore(void)
{
    memcpy(ring, base_ring, RING_BYTES);
    memcpy(cursors, base_cursors, RB_CURSORS_BYTES);
}

/* Two foreign slots instead of 64: a scan of them is one loop, and 60 more rounds of it tell nothing new. */
static void heed_few(rb_writer *writer)
{
    rb_writer_select_blocking(writer, 1);
    rb_writer_admit(writer, 0);
    rb_writer_admit(writer, 63);
}

/* The last step: the program ends here. */
__attribute__((noinline, noreturn)) static void through(void)
{
    _exit(0);
}

static pid_t start(const struct scenario *scenario)
{
    pid_t child = fork();
    if (child < 0)
        wrong("no child");
    if (child == 0) {
        rb_writer writer;
        if (scenario->run != run_takeover &&
            rb_writer_open(&writer, ring, RING_BYTES, cursors, &local_cursors) != RB_OK)
            _exit(1);
        payloads_ready(base_offset);
        heed_few(&writer);
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        scenario->run(&writer);
        through();
    }
    return child;
}

/* The signal that stopped it. */
static int stopped(pid_t child)
{
    int status;
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
        wrong("the child got lost");
    return WSTOPSIG(status);
}

static int go_on(pid_t child, enum __ptrace_request how)
{
    if (ptrace(how, child, NULL, NULL) != 0)
        wrong("the child cannot be traced");
    return stopped(child);
}

static void *counter_place(void)
{
    return (void *)offsetof(struct user, regs.rip);
}

static uint64_t counter_of(pid_t child)
{
    return (uint64_t)ptrace(PTRACE_PEEKUSER, child, counter_place(), NULL);
}

static void end(pid_t child)
{
    kill(child, SIGKILL);
    if (waitpid(child, NULL, 0) != child)
        wrong("the child did not die");
}

/* Steps a child through and notes where it was. */
static void trace(const struct scenario *scenario)
{
    restore();
    pid_t child = start(scenario);
    stopped(child);
    points = 0;
    do {
        if (points == POINTS_MAX)
            wrong("more than %d points", POINTS_MAX);
        address_of[points++] = counter_of(child);
    } while (address_of[points - 1] != (uintptr_t)through && go_on(child, PTRACE_SINGLESTEP) == SIGTRAP);
    if (address_of[points - 1] != (uintptr_t)through)
        wrong("the child stopped by itself");
    end(child);
}

/* Lets the child run until it is about to execute the instruction of `point`. */
static void run_to_point(pid_t child)
{
    void *address = (void *)address_of[point];
    stopped(child);
    long word = ptrace(PTRACE_PEEKTEXT, child, address, NULL), broken = (word & ~0xffl) | 0xcc;
    for (long i = 0; i <= point; i++) {
        if (address_of[i] != address_of[point])
            continue;
        if (i > 0) { /* the child stands at point 0 from the start */
            ptrace(PTRACE_POKETEXT, child, address, (void *)broken);
            if (go_on(child, PTRACE_CONT) != SIGTRAP || counter_of(child) != address_of[point] + 1)
                wrong("the child did not come by");
            ptrace(PTRACE_POKETEXT, child, address, (void *)word);
            ptrace(PTRACE_POKEUSER, child, counter_place(), address);
        }
        if (i < point)
            go_on(child, PTRACE_SINGLESTEP);
    }
}

static void try_point(const struct scenario *scenario, uint64_t *seen)
{
    restore();
    rb_reader watcher = reader_at(false), holder = reader_at(true);
    rb_view held;
    bool holds = rb_read(&holder, &held) == RB_OK;
    pid_t child = start(scenario);
    run_to_point(child);
    walk(&watcher, "that waits");
    rb_reader oldest = reader_at(true);
    walk(&oldest, "from the oldest on");
    if (oldest.offset != watcher.offset)
        wrong("two readers end at %llu and %llu", (unsigned long long)oldest.offset,
              (unsigned long long)watcher.offset);
    if (watcher.offset < *seen || watcher.offset > final_offset)
        wrong("%llu records are there, a moment before it were %llu", (unsigned long long)watcher.offset,
              (unsigned long long)*seen);
    *seen = watcher.offset;
    check_end(watcher.offset);
    if (holds)
        check_held(&holder, &held);
    check_gate();
    end(child);
    check_after(watcher.offset, &watcher);
}

/* The scenario undisturbed: where each record lies, and how many there are in the end. */
static void rehearse(const struct scenario *scenario)
{
    rb_writer writer;
    rb_view view;
    restore();
    if (rb_writer_open(&writer, ring, RING_BYTES, cursors, &local_cursors) != RB_OK)
        wrong("the rehearsal cannot begin");
    restore();
    payloads_ready(base_offset);
    scenario->run(&writer);
    final_offset = writer.offset;
    memset(place_of, 0xff, sizeof place_of);
    rb_reader reader = reader_at(true);
    while (rb_read(&reader, &view) == RB_OK) {
        place_of[view.header.offset % 4096] = view.position;
        behind[(view.header.offset + 1) % 4096] = view.position + rb_span(view.header.length);
    }
    place_of[writer.offset % 4096] = writer.tail;
}

static void build(const struct scenario *scenario)
{
    rb_writer writer;
    uint64_t unused;
    memset(ring, 0, RING_BYTES);
    memset(cursors, 0, RB_CURSORS_BYTES);
    memset(&local_cursors, 0, sizeof local_cursors);
    rb_format(ring, CAPACITY, EPOCH, 0, "step", 1, 1);
    rb_format_cursors(cursors, ring);
    if (rb_writer_open(&writer, ring, RING_BYTES, cursors, &local_cursors) != RB_OK)
        wrong("the ring cannot be written");
    scenario->prepare(&writer);
    rb_end_read((rb_header *)ring, &unused, &base_offset);
    memcpy(base_ring, ring, RING_BYTES);
    memcpy(base_cursors, cursors, RB_CURSORS_BYTES);
    rehearse(scenario);
}

static void run_scenario(const struct scenario *scenario)
{
    scenario_name = scenario->name;
    point = 0;
    build(scenario);
    uint64_t seen = base_offset + (uint64_t)scenario->unpublished;
    trace(scenario);
    for (point = 0; point < points; point++)
        try_point(scenario, &seen);
    if (seen != final_offset)
        wrong("the child got through with %llu records", (unsigned long long)(seen - base_offset));
    printf("%s: %ld points\n", scenario->name, points);
}

int main(int count, char **arguments)
{
    const int protection = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_ANONYMOUS;
    ring = mmap(NULL, RING_BYTES, protection, flags, -1, 0);
    cursors = mmap(NULL, RB_CURSORS_BYTES, protection, flags, -1, 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    int done = 0;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        if (count < 2 || strcmp(arguments[1], scenarios[i].name) == 0) {
            run_scenario(&scenarios[i]);
            done++;
        }
    return done > 0 ? 0 : 2;
}
