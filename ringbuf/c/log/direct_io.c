/* SPDX-License-Identifier: Apache-2.0
 *
 * Direct I/O (O_DIRECT), past the page cache: the stage, and writes in flight.
 *
 * Owns the stage, a window over the file: the byte at position p is stage[p % STAGE_BYTES].  Bytes are copied
 * there once, with their checksum computed in the same pass.  Complete chunks are written as they fill,
 * several at a time (the kernel's asynchronous I/O, by system calls), so that the device works while the next
 * chunk is filled.  If the kernel gives no asynchronous I/O (a sandbox, or fs.aio-max-nr used up by other
 * programs), each chunk is written synchronously, and this is reported.  The rest of a chunk is written at a
 * flush, before a sync, and not in every small round.
 *
 * Never decides the time of a sync, and makes nothing durable.
 *
 * Invariants
 *   1. begin <= end.  Bytes below `begin` have been submitted, and `begin` is at a block boundary.
 *   2. No byte of a chunk in flight changes, and no block is in flight twice: a flush returns when nothing is
 *      in flight.  The next flush writes the last block again with the same bytes at its begin.  A device
 *      writes a logical block completely or not at all, so durable bytes in it stay durable.
 *   3. After an error no write is submitted, and nothing is in flight when the error is reported.
 */
#include "log/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHUNKS RB_DISK_CHUNKS
#define CHUNK_BYTES (1u << 20) /* size of a request: each costs a call, a sleep and an interrupt */
#define STAGE_BYTES (CHUNKS * CHUNK_BYTES)
#define HUGE_BYTES (2u << 20)      /* size of a huge page: the kernel pins one page, not 512 */
#define MARKED_BYTES (32u << 10)   /* a flush of this size is followed by a block of zeros */
#define NOT_LOADED UINT64_MAX

_Static_assert(CHUNKS / 2 + 2 < CHUNKS, "what is held, and the chunks that it begins and ends in, have room");
_Static_assert(STAGE_BYTES % HUGE_BYTES == 0 && CHUNK_BYTES % RB_DISK_PAGE_BYTES == 0, "whole pages");

static uint8_t *at(const rb_disk *disk, uint64_t place)
{
    return disk->stage + (place & (CHUNKS * (uint64_t)disk->chunk_bytes - 1));
}

static uint64_t slot_of(const rb_disk *disk, uint64_t place)
{
    return place / disk->chunk_bytes % CHUNKS;
}

/* Largest extent whose checksum is computed during the copy. */
static uint64_t held_bytes(const rb_disk *disk)
{
    return CHUNKS / 2 * (uint64_t)disk->chunk_bytes;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- one range of the stage, inside a chunk ---- */

/* Write synchronously.  0, or a negative errno. */
static int write_now(rb_log *log, uint64_t from, uint64_t to)
{
    rb_log_inside *in = log->inside;
    rb_disk *disk = &in->disk;
    while (from < to) {
        rb_log_piece piece = {at(disk, from), to - from};
        int64_t written = in->calls.write != NULL
                              ? in->calls.write(in->calls.context, &piece, 1, from)
                              : pwrite(disk->descriptor, piece.base, piece.length, (off_t)from);
        if (written < 0 && in->calls.write == NULL && errno == EINTR)
            continue;
        if (written < 0)
            return in->calls.write != NULL ? (int)written : -errno;
        if (written < disk->block_bytes)
            return -ENOSPC; /* the file accepts no more bytes, without an error */
        from += (uint64_t)written - (uint64_t)written % disk->block_bytes;
    }
    return 0;
}

/* Wait for at least `least` writes in flight.  Stores slots and results; returns their number, or a negative
 * errno. */
static int wait_for(rb_log_inside *in, long least, struct io_event *events)
{
    if (in->calls.reap != NULL) {
        int64_t result = 0;
        events[0].data = in->calls.reap(in->calls.context, &result);
        events[0].res = result;
        return 1;
    }
    long count = syscall(SYS_io_getevents, in->disk.context, least, (long)CHUNKS, events, NULL);
    return count < 0 ? -errno : (int)count;
}

/* Wait until at least `least` writes in flight are done. */
static void reap(rb_log *log, int least)
{
    rb_disk *disk = &log->inside->disk;
    struct io_event events[CHUNKS];
    int count = wait_for(log->inside, least, events);
    if (count < 0 && count != -EINTR) { /* impossible: the state of all writes is then unknown */
        disk->error = count;
        disk->in_flight = 0;
    }
    for (int i = 0; i < count; i++) {
        uint64_t slot = events[i].data, from = disk->places[slot], to = from + disk->lengths[slot];
        disk->in_flight &= ~((uint64_t)1 << slot);
        int64_t written = events[i].res;
        if (written < 0 && disk->error == 0)
            disk->error = (int)written;
        else if (written >= 0 && (uint64_t)written < to - from && disk->error == 0)
            disk->error = write_now(log, from + (uint64_t)written / disk->block_bytes * disk->block_bytes,
                                    to);
    }
}

/* Wait for all writes, with one sleep instead of one for each. */
static void reap_all(rb_log *log)
{
    const rb_disk *disk = &log->inside->disk;
    while (disk->in_flight != 0)
        reap(log, __builtin_popcountll(disk->in_flight));
}

/* The error of this segment, or 0.  After an error nothing is in flight. */
static int failure(rb_log *log)
{
    if (log->inside->disk.error != 0)
        reap_all(log);
    return log->inside->disk.error;
}

/* True if the kernel has accepted the write. */
static bool begun(rb_disk *disk, uint64_t slot, uint64_t from, uint64_t to)
{
    struct iocb block = {.aio_data = slot,
                         .aio_lio_opcode = IOCB_CMD_PWRITE,
                         .aio_fildes = (uint32_t)disk->descriptor,
                         .aio_buf = (uint64_t)(uintptr_t)at(disk, from),
                         .aio_nbytes = to - from,
                         .aio_offset = (int64_t)from};
    struct iocb *blocks[] = {&block};
    return disk->context != 0 && syscall(SYS_io_submit, disk->context, 1l, blocks) == 1;
}

/* Submit a write.  False: the disk accepts none now. */
static bool submit(rb_log *log, uint64_t from, uint64_t to)
{
    const rb_log_calls *calls = &log->inside->calls;
    rb_disk *disk = &log->inside->disk;
    uint64_t slot = slot_of(disk, from);
    if (calls->submit != NULL) {
        if (calls->submit(calls->context, at(disk, from), to - from, from, (uint32_t)slot) != 0)
            return false;
    } else if (!begun(disk, slot, from, to)) {
        return false;
    }
    disk->places[slot] = from;
    disk->lengths[slot] = to - from;
    disk->in_flight |= (uint64_t)1 << slot;
    return true;
}

/* ---- the stage ---- */

/* Write everything from `begin` up to `to`, the end of a block. */
static int hand_over(rb_log *log, uint64_t to)
{
    rb_disk *disk = &log->inside->disk;
    while (disk->begin < to && disk->error == 0) {
        uint64_t end = least(to, disk->begin - disk->begin % disk->chunk_bytes + disk->chunk_bytes);
        bool alone = end % disk->chunk_bytes != 0 &&
                     disk->in_flight == 0; /* the end of a flush: synchronous is as fast */
        if (alone || !submit(log, disk->begin, end))
            disk->error = write_now(log, disk->begin, end);
        disk->begin = end;
    }
    return failure(log);
}

/* Load the block of the segment's end into the stage: Python wrote that block. */
static int load(rb_log *log)
{
    rb_log_inside *in = log->inside;
    rb_disk *disk = &in->disk;
    uint64_t block = log->end - log->end % disk->block_bytes;
    disk->begin = block;
    disk->end = disk->flushed = log->end;
    memset(at(disk, block), 0, disk->block_bytes);
    if (block == log->end)
        return 0;
    int64_t result = in->calls.read != NULL
                         ? in->calls.read(in->calls.context, at(disk, block), disk->block_bytes, block)
                         : pread(disk->descriptor, at(disk, block), disk->block_bytes, (off_t)block);
    if (result < 0)
        disk->error = in->calls.read != NULL ? (int)result : -errno;
    else if (block + (uint64_t)result < log->end)
        disk->error = -EIO;
    return disk->error;
}

/* Wait until the chunk at `place` is not in flight. */
static void await(rb_log *log, uint64_t place)
{
    while (log->inside->disk.in_flight >> slot_of(&log->inside->disk, place) & 1)
        reap(log, 1);
}

int rb_direct_stage(rb_log *log, const void *bytes, uint64_t length, uint32_t *crc)
{
    rb_disk *disk = &log->inside->disk;
    if (disk->begin == NOT_LOADED && load(log) != 0)
        return disk->error;
    for (uint64_t done = 0; done < length;) {
        if (disk->end % disk->chunk_bytes == 0) {
            if (crc == NULL && hand_over(log, disk->end) != 0)
                return disk->error;
            await(log, disk->end);
        }
        uint8_t *to = at(disk, disk->end);
        uint64_t part = least(length - done, disk->chunk_bytes - disk->end % disk->chunk_bytes);
        const uint8_t *from = (const uint8_t *)bytes + done;
        if (crc != NULL)
            *crc = rb_crc32c_copy(*crc, to, from, part);
        else
            memcpy(to, from, part);
        disk->end += part;
        done += part;
    }
    return failure(log);
}

int rb_direct_extent(rb_log *log, extent_header *header, const uint8_t *body)
{
    rb_disk *disk = &log->inside->disk;
    bool held = header->length <= held_bytes(disk); /* until the checksum is computed */
    uint32_t crc = header->crc;
    if (!held)
        header->crc = rb_crc32c(crc, body, header->length);
    int result = rb_direct_stage(log, header, sizeof *header, NULL);
    uint64_t behind = disk->end;
    if (result == 0)
        result = rb_direct_stage(log, body, header->length, held ? &crc : NULL);
    if (result != 0)
        return result;
    if (held) {
        header->crc = crc;
        memcpy(at(disk, behind - sizeof *header), header, sizeof *header);
    }
    return hand_over(log, disk->end - disk->end % disk->chunk_bytes);
}

int rb_direct_flush(rb_log *log)
{
    rb_disk *disk = &log->inside->disk;
    if (disk->descriptor < 0 || disk->begin == NOT_LOADED || disk->error != 0 || disk->flushed == disk->end)
        return failure(log);
    uint64_t block = disk->block_bytes, to = (disk->end + block - 1) / block * block;
    if (to == disk->end && disk->end - disk->flushed >= MARKED_BYTES && to + block <= log->capacity) {
        if (to % disk->chunk_bytes == 0)
            await(log, to);
        to += block;
    }
    memset(at(disk, disk->end), 0, to - disk->end);
    hand_over(log, to);
    reap_all(log);
    disk->begin = disk->end - disk->end % block;
    disk->flushed = disk->end;
    return disk->error;
}

void rb_direct_enter(rb_log *log)
{
    rb_disk *disk = &log->inside->disk;
    reap_all(log);
    disk->begin = NOT_LOADED;
    disk->error = 0;
}

/* ---- the file ---- */

void rb_direct_close(rb_log *log)
{
    rb_disk *disk = &log->inside->disk;
    rb_direct_enter(log);
    if (disk->descriptor >= 0 && log->inside->calls.write == NULL)
        close(disk->descriptor);
    disk->descriptor = -1;
}

void rb_direct_free(rb_log *log)
{
    rb_disk *disk = &log->inside->disk;
    rb_direct_close(log);
    if (disk->context != 0)
        syscall(SYS_io_destroy, disk->context);
    free(disk->stage);
}

static bool make_stage(rb_disk *disk)
{
    if (disk->stage != NULL)
        return true;
    disk->stage = aligned_alloc(HUGE_BYTES, STAGE_BYTES);
    if (disk->stage == NULL)
        return false;
    madvise(disk->stage, STAGE_BYTES, MADV_HUGEPAGE);
    return true;
}

/* Smallest block of the device, found by reading one: the device refuses a read as it would refuse a
 * write. */
static int probe_block(const rb_disk *disk, int descriptor)
{
    for (uint32_t block = 512; block <= RB_DISK_PAGE_BYTES; block *= 2) {
        uint8_t *to = disk->stage + (block < RB_DISK_PAGE_BYTES ? block : 0);
        if (pread(descriptor, to, block, 0) == (ssize_t)block)
            return (int)block;
    }
    return -EINVAL;
}

/* Allocate the file: a growing file serializes writes.  Also drop the file's pages from the page cache, which
 * are of no use. */
static void make_ready(const rb_log *log)
{
    struct stat status;
    if (fstat(log->descriptor, &status) == 0 && (uint64_t)status.st_size < log->capacity)
        fallocate(log->descriptor, 0, 0, (off_t)log->capacity); /* if refused, the file grows */
    posix_fadvise(log->descriptor, 0, 0, POSIX_FADV_DONTNEED);
}

/* Set up asynchronous I/O.  Tried again with each segment, because other programs may have released
 * theirs. */
static void set_up(rb_disk *disk)
{
    if (disk->context != 0)
        return;
    disk->no_context = syscall(SYS_io_setup, (long)CHUNKS, &disk->context) == 0 ? 0 : -errno;
    if (disk->no_context != 0)
        disk->context = 0;
}

int rb_log_one_by_one(const rb_log *log)
{
    return log->inside->disk.no_context;
}

int rb_log_direct(rb_log *log)
{
    rb_disk *disk = &log->inside->disk;
    if (!make_stage(disk))
        return -ENOMEM;
    int block = (int)log->inside->calls.block_bytes, descriptor = log->descriptor;
    disk->chunk_bytes = log->inside->calls.write == NULL ? CHUNK_BYTES : log->inside->calls.chunk_bytes;
    if (log->inside->calls.write == NULL) {
        char path[32];
        snprintf(path, sizeof path, "/proc/self/fd/%d", log->descriptor);
        if ((descriptor = open(path, O_RDWR | O_DIRECT | O_CLOEXEC)) < 0)
            return -errno;
        if ((block = probe_block(disk, descriptor)) < 0) {
            close(descriptor);
            return block;
        }
        make_ready(log);
        set_up(disk);
    }
    disk->descriptor = descriptor;
    disk->block_bytes = (uint32_t)block;
    return block;
}
