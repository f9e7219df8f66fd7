/* SPDX-License-Identifier: Apache-2.0
 *
 * Crash points of the spill file: a broker is stopped behind every single instruction of what it does to the
 * file, and the file is read back as it is then.
 *
 *     step_spill SCENARIO      prints how many states passed; status 1 and a line that says what went wrong
 *
 * A child with an engine works on a file in shared memory, single-stepped by ptrace.  Whenever a byte of the
 * file has changed, the parent copies the file and starts an engine with the copy, as after a kill at that
 * instruction.  Each copy of a record is a function of its number; a ledger in shared memory has the numbers
 * that were committed, and those that no session needs any more.  Each needed one must be found,
 * and whatever is found must be true.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mqtt/mqtt.h"

#define COPIES 4096
#define EPOCH 77
#define JOURNAL_EPOCH 5
#define UNITS 12
#define PAGE_BYTES 4096
#define IMAGE_BYTES (UNITS * MQ_UNIT_BYTES)
#define STEPS_MAX 1000000
#define READY 64 /* records made before the steps begin: making one is not what is looked at */
#define RECORD_MAX 70000

static struct ledger {
    uint32_t committed[COPIES], needless[COPIES], next;
} * ledger;                               /* shared with the child */
static mq_blob *blobs[COPIES];            /* the child's */
static uint8_t *file, image[IMAGE_BYTES]; /* the file, shared; and as it was last looked at */
static int descriptor, copied;            /* of the file, and of a copy of it */
static mq_engine *engine;
static mq_ring ring;
static size_t image_bytes;
static uint8_t ready[READY][RECORD_MAX];
static long states;
static bool stepped;
static const char *scenario_name;

__attribute__((format(printf, 1, 2), noreturn)) static void wrong(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("%s, state %ld: ", scenario_name, states);
    vprintf(format, list);
    printf("\n");
    va_end(list);
    exit(1);
}

/* ---- an engine that has a spill file, and nothing else ---- */

void mq_blob_done(mq_engine *its, mq_blob *blob)
{
    if (--blob->references == 0)
        mq_spill_release(its, blob);
}

bool mq_queue_next(const mq_session *session, mq_walk *walk)
{
    (void)session;
    (void)walk;
    return false;
}

void *mq_slab_at(const mq_slab *slab, uint32_t index)
{
    (void)slab;
    (void)index;
    return NULL;
}

static mq_engine *engine_new(void)
{
    mq_engine *made = calloc(1, sizeof *made);
    if (made == NULL)
        abort();
    made->limits.spill_max_bytes = 1 << 20;
    made->seed[0] = 1;
    made->now_ms = 1;
    return made;
}

/* ---- copies ---- */

/* Lengths of all kinds: every twentieth needs an extent of its own. */
static uint32_t length_of(uint32_t number, uint32_t large)
{
    return RB_RECORD_HEADER_BYTES + 8 + (large ? large : number * 37 % 500);
}

static void body_make(uint32_t number, uint32_t length, uint8_t *out)
{
    for (uint32_t i = 0; i < length; i++)
        out[i] = (uint8_t)(number * 131 + i * 7 + 1);
}

static void make_ready(void)
{
    for (uint32_t number = ledger->next; number < ledger->next + READY; number++)
        body_make(number, RECORD_MAX, ready[number % READY]);
}

static void record_put(uint32_t number, uint32_t length, uint8_t *out)
{
    rb_record record = {.length = length, .offset = number, .key_length = 3};
    memcpy(out, &record, sizeof record);
    memcpy(out + sizeof record, ready[number % READY], length - sizeof record);
}

static void copy(uint32_t large)
{
    if (!stepped && ledger->next % READY == 0)
        make_ready();
    uint32_t number = ledger->next++, length = length_of(number, large);
    mq_blob *blob = mq_spill_reserve(engine, &ring, number * RB_RECORD_ALIGN, length);
    if (blob == NULL)
        abort();
    record_put(number, length, (uint8_t *)&blob->record);
    mq_spill_commit(engine, blob);
    blob->references = 1;
    blobs[number] = blob;
    ledger->committed[number] = length;
}

static void give_up(uint32_t number)
{
    ledger->needless[number] = 1;
    mq_blob_done(engine, blobs[number]);
}

static void move(uint32_t number)
{
    mq_blob *moved = mq_spill_copy(engine, blobs[number]);
    if (moved == NULL)
        abort();
    moved->references = 1;
    mq_blob_done(engine, blobs[number]);
    blobs[number] = moved;
}

static void copies(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        copy(0);
}

static void fill_unit(void)
{
    do
        copy(0);
    while (engine->spill.extents[engine->spill.filling].used < MQ_UNIT_BYTES - 300);
}

/* ---- scenarios: the file before, and what is done to it step by step ---- */

static void prepare_nothing(void)
{
}

static void run_few(void)
{
    copies(3);
}

static void prepare_few(void)
{
    copies(10);
}

static void run_large(void)
{
    copy(17000);
    copy(0);
    copy(66000);
}

static void run_large_ends(void)
{
    uint32_t number = ledger->next;
    copy(66000);
    copies(2);
    give_up(number);
    mq_spill_maintain(engine);
    copy(66000);
}

/* A unit whose memory held other copies before: they must not come back, and no half of one. */
static void prepare_used(void)
{
    fill_unit();
    copies(5);
    for (uint32_t number = 0; number < ledger->next - 6; number++)
        give_up(number);
    mq_spill_maintain(engine);
}

static void run_reuse(void)
{
    for (uint32_t number = ledger->next - 6; number < ledger->next - 3; number++)
        if (!ledger->needless[number])
            give_up(number);
    mq_spill_maintain(engine);
    while (engine->spill.extents[engine->spill.filling].used + 16500 < MQ_UNIT_BYTES)
        copy(16000);
    copies(4);
}

static void run_moves(void)
{
    for (uint32_t number = ledger->next - 5; number < ledger->next; number++)
        move(number);
    mq_spill_maintain(engine);
    copies(2);
}

static const struct scenario {
    const char *name;
    void (*prepare)(void), (*run)(void);
} scenarios[] = {
    {"first", prepare_nothing, run_few},
    {"few", prepare_few, run_few},
    {"unit", fill_unit, run_few},
    {"large", prepare_few, run_large},
    {"large ends", prepare_few, run_large_ends},
    {"reuse", prepare_used, run_reuse},
    {"moves", prepare_used, run_moves},
};

/* ---- the state of the file at one instruction ---- */

static void judge(uint32_t number, const mq_blob *blob)
{
    static uint8_t expected[RECORD_MAX];
    uint32_t length = ledger->committed[number];
    if (length == 0) /* it is being committed */
        length = blob->record.length;
    body_make(number, length - RB_RECORD_HEADER_BYTES, expected);
    if (blob->record.length != length || blob->record.offset != number ||
        memcmp(&blob->record + 1, expected, length - RB_RECORD_HEADER_BYTES) != 0)
        wrong("copy %u is not what was copied", number);
}

static void look(void)
{
    static const uint32_t known[] = {JOURNAL_EPOCH};
    if (ftruncate(copied, (off_t)image_bytes) != 0 ||
        pwrite(copied, image, image_bytes, 0) != (ssize_t)image_bytes)
        wrong("the file cannot be copied");
    mq_engine *after = engine_new();
    mq_spill_opened opened = mq_spill_open(after, dup(copied), known, 1);
    bool any = false;
    for (uint32_t number = 0; number <= ledger->next; number++)
        any |= ledger->committed[number] != 0;
    if (opened != MQ_SPILL_FOUND && any)
        wrong("the file is not taken over: %d", (int)opened);
    for (uint32_t number = 0; number <= ledger->next && opened == MQ_SPILL_FOUND; number++) {
        const mq_blob *blob = mq_spill_find(after, &ring, number * RB_RECORD_ALIGN);
        if (blob != NULL)
            judge(number, blob);
        else if (ledger->committed[number] != 0 && !ledger->needless[number])
            wrong("copy %u was committed, and is not there", number);
    }
    mq_spill_free(after);
    free(after);
    states++;
}

/* True: the file is another one than at the last look. */
static bool changed(void)
{
    struct stat facts;
    if (fstat(descriptor, &facts) != 0 || facts.st_size > IMAGE_BYTES)
        wrong("the file is too long");
    bool differs = image_bytes != (size_t)facts.st_size;
    image_bytes = (size_t)facts.st_size;
    for (size_t at = 0; at < image_bytes; at += PAGE_BYTES) {
        if (memcmp(image + at, file + at, PAGE_BYTES) == 0)
            continue;
        memcpy(image + at, file + at, PAGE_BYTES);
        differs = true;
    }
    return differs;
}

/* ---- stepping ---- */

static void run_scenario(const struct scenario *scenario)
{
    static const uint32_t known[] = {JOURNAL_EPOCH};
    scenario_name = scenario->name;
    memset(ledger, 0, sizeof *ledger);
    memset(image, 0, sizeof image);
    image_bytes = 0;
    descriptor = memfd_create("spill", 0);
    copied = memfd_create("copy", 0);
    file = mmap(NULL, IMAGE_BYTES, PROT_READ, MAP_SHARED, descriptor, 0);
    engine = engine_new();
    if (file == MAP_FAILED || mq_spill_open(engine, dup(descriptor), known, 1) != MQ_SPILL_NEW)
        wrong("no file");
    stepped = false;
    scenario->prepare();
    stepped = true;
    make_ready();
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        scenario->run();
        _exit(0);
    }
    int status;
    long steps = 0;
    for (waitpid(child, &status, 0); WIFSTOPPED(status) && steps < STEPS_MAX; steps++) {
        if (changed() || steps == 0)
            look();
        ptrace(PTRACE_SINGLESTEP, child, NULL, NULL);
        waitpid(child, &status, 0);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        wrong("the child ended with status %x after %ld steps", (unsigned)status, steps);
    changed();
    look();
    mq_spill_free(engine);
    free(engine);
    munmap(file, IMAGE_BYTES);
    close(descriptor);
    close(copied);
    printf("%s: %ld states\n", scenario->name, states);
}

int main(int count, char **arguments)
{
    ledger = mmap(NULL, sizeof *ledger, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ring = (mq_ring){.kind = MQ_RING_OWN, .ring_name = "plant-0", .ring_name_length = 7, .epoch = EPOCH};
    int done = 0;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        if (count < 2 || strcmp(arguments[1], scenarios[i].name) == 0) {
            states = 0;
            run_scenario(&scenarios[i]);
            done++;
        }
    return done > 0 ? 0 : 2;
}
