/* SPDX-License-Identifier: Apache-2.0
 *
 * The log's system calls: one write, one sync, and what makes them cheaper.
 *
 * Through the page cache, write-back of what was written begins at once (sync_file_range), so that the disk
 * works while the next run is read from its ring; the sync then waits for the rest.  That call promises
 * nothing and nothing is made of it.
 *
 * Past the page cache (O_DIRECT), runs are copied into an aligned buffer and go out by whole blocks of the
 * device.  Rounds end at the end of a block (fill_up() in extents.c).  Where one does not, before a segment's
 * end or behind what Python wrote, that block is written again by the next one with the same bytes in front:
 * a device writes its logical block whole or not at all, so what is durable in it stays durable.
 */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define BUFFER_BYTES (1u << 20)
#define START_BYTES (128u << 10) /* fewer are left to the sync: a request of its own would only delay it */
#define ALIGN_BYTES 4096u

_Static_assert(sizeof(rb_log_piece) == sizeof(struct iovec), "a piece is an iovec");
_Static_assert(offsetof(rb_log_piece, length) == offsetof(struct iovec, iov_len), "a piece is an iovec");

void rb_log_cached(rb_log *log)
{
    rb_disk *disk = &log->inside->disk;
    if (disk->descriptor >= 0)
        close(disk->descriptor);
    disk->descriptor = -1;
}

/* The smallest block that the device takes: found by reading one, which it refuses like it would a write. */
static int probe_block(rb_disk *disk, int descriptor)
{
    for (uint32_t block = 512; block <= ALIGN_BYTES; block *= 2)
        if (pread(descriptor, disk->buffer + (block < ALIGN_BYTES ? block : 0), block, 0) == (ssize_t)block)
            return (int)block;
    return -EINVAL;
}

int rb_log_direct(rb_log *log)
{
    rb_disk *disk = &log->inside->disk;
    char path[32];
    rb_log_cached(log);
    if (disk->buffer == NULL && (disk->buffer = aligned_alloc(ALIGN_BYTES, BUFFER_BYTES)) == NULL)
        return -ENOMEM;
    snprintf(path, sizeof path, "/proc/self/fd/%d", log->descriptor);
    int descriptor = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    if (descriptor < 0)
        return -errno;
    int block = probe_block(disk, descriptor);
    if (block < 0) {
        close(descriptor);
        return block;
    }
    disk->descriptor = descriptor;
    disk->block_bytes = (uint32_t)block;
    disk->buffered_at = UINT64_MAX;
    return block;
}

void rb_disk_enter(rb_log *log)
{
    log->inside->disk.buffered_at = UINT64_MAX; /* Python has written meanwhile, through the cache */
    log->inside->disk.started = log->end - log->end % ALIGN_BYTES;
}

static int64_t full(void)
{
    return -ENOSPC; /* the file takes no more bytes, and does not say why */
}

/* All of them, at `place`: 0, or a negative errno. */
static int64_t write_cached(rb_log *log, rb_log_piece *pieces, int count, uint64_t place)
{
    rb_log_inside *in = log->inside;
    while (count > 0) {
        int64_t written = in->write != NULL
                              ? in->write(in->context, pieces, count, place)
                              : pwritev(log->descriptor, (struct iovec *)pieces, count, (off_t)place);
        if (written < 0 && in->write == NULL && errno == EINTR)
            continue;
        if (written <= 0)
            return written == 0 ? full() : in->write != NULL ? written : -errno;
        place += (uint64_t)written;
        for (; count > 0 && (uint64_t)written >= pieces->length; pieces++, count--)
            written -= (int64_t)pieces->length;
        if (count > 0) {
            pieces->base = (uint8_t *)pieces->base + written;
            pieces->length -= (size_t)written;
        }
    }
    return 0;
}

/* Whole pages only: one that the next write goes on in would have to be written twice. */
static void start_writing(rb_log *log, uint64_t end)
{
    rb_disk *disk = &log->inside->disk;
    end -= end % ALIGN_BYTES;
    if (log->inside->write != NULL || end < disk->started + START_BYTES)
        return;
    sync_file_range(log->descriptor, (off_t)disk->started, (off_t)(end - disk->started),
                    SYNC_FILE_RANGE_WRITE);
    disk->started = end;
}

/* The first `length` bytes of the buffer go to where the buffer stands, a multiple of the block. */
static int64_t write_blocks(rb_disk *disk, uint64_t length)
{
    for (uint64_t done = 0; done < length;) {
        ssize_t written = pwrite(disk->descriptor, disk->buffer + done, length - done,
                                 (off_t)(disk->buffered_at + done));
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0 || (uint64_t)written % disk->block_bytes != 0)
            return written < 0 ? -errno : full();
        done += (uint64_t)written;
    }
    return 0;
}

/* The block that `place` is in stands at the begin of the buffer. */
static int64_t buffer_block(rb_disk *disk, uint64_t place)
{
    uint64_t block = place - place % disk->block_bytes;
    if (disk->buffered_at == block)
        return 0;
    memset(disk->buffer, 0, disk->block_bytes);
    disk->buffered_at = block;
    if (block != place && pread(disk->descriptor, disk->buffer, disk->block_bytes, (off_t)block) < 0) {
        disk->buffered_at = UINT64_MAX;
        return -errno;
    }
    return 0;
}

static int64_t write_direct(rb_log *log, const rb_log_piece *pieces, int count, uint64_t place)
{
    rb_disk *disk = &log->inside->disk;
    uint64_t block = disk->block_bytes;
    int64_t result = buffer_block(disk, place);
    uint64_t filled = place % block;
    for (int i = 0; i < count && result == 0; i++) {
        bool last = i == count - 1; /* the zeros: the next write goes over them */
        uint64_t length = pieces[i].length;
        for (uint64_t at = 0; at < length && result == 0;) {
            uint64_t part = BUFFER_BYTES - filled < length - at ? BUFFER_BYTES - filled : length - at;
            memcpy(disk->buffer + filled, (const uint8_t *)pieces[i].base + at, part);
            filled += part;
            at += part;
            if (filled == BUFFER_BYTES && (result = write_blocks(disk, BUFFER_BYTES)) == 0) {
                disk->buffered_at += BUFFER_BYTES;
                filled = 0;
            }
        }
        if (!last)
            place += length;
    }
    uint64_t whole = (filled + block - 1) / block * block;
    memset(disk->buffer + filled, 0, whole - filled);
    if (result == 0 && whole > 0)
        result = write_blocks(disk, whole);
    /* The next write begins at `place`, before the zeros: its block comes to the front. */
    uint64_t next = place - place % block;
    if (result != 0 || next < disk->buffered_at) {
        disk->buffered_at = UINT64_MAX;
        return result;
    }
    memmove(disk->buffer, disk->buffer + (next - disk->buffered_at), block);
    disk->buffered_at = next;
    return 0;
}

int64_t rb_disk_write(rb_log *log, rb_log_piece *pieces, int count, uint64_t place)
{
    if (log->inside->disk.descriptor >= 0)
        return write_direct(log, pieces, count, place);
    uint64_t end = place;
    for (int i = 0; i < count - 1; i++)
        end += pieces[i].length;
    int64_t result = write_cached(log, pieces, count, place);
    if (result == 0)
        start_writing(log, end);
    return result;
}

int rb_disk_sync(rb_log *log)
{
    rb_log_inside *in = log->inside;
    if (in->sync != NULL)
        return in->sync(in->context);
    int descriptor = in->disk.descriptor >= 0 ? in->disk.descriptor : log->descriptor;
    if (fdatasync(descriptor) != 0)
        return -errno;
    in->disk.started = log->end - log->end % ALIGN_BYTES;
    return 0;
}

void rb_disk_wake(int descriptor)
{
    uint64_t one = 1;
    if (descriptor >= 0 && write(descriptor, &one, sizeof one) < 0)
        return; /* it is an eventfd that is full: who listens is awake */
}

void rb_disk_yields(void)
{
    syscall(SYS_ioprio_set, 1 /* a thread */, 0 /* this one */,
            2 << 13 | 7 /* best effort, the last of it */);
}
