/* SPDX-License-Identifier: Apache-2.0
 *
 * System calls of the log: writes through the page cache, syncs, and early write-back.
 *
 * Write-back of written pages is started at once (sync_file_range), so that the disk works while the next run
 * is read from its ring; the sync then waits for the rest.  That call gives no guarantee, and the log relies
 * on none.
 */
#include "log/log.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define START_BYTES (128u << 10) /* fewer bytes are left to the sync: an extra request would delay it */

_Static_assert(sizeof(rb_log_piece) == sizeof(struct iovec), "a piece is an iovec");
_Static_assert(offsetof(rb_log_piece, length) == offsetof(struct iovec, iov_len), "a piece is an iovec");

void rb_disk_enter(rb_log *log)
{
    rb_direct_enter(log);
    log->inside->disk.started = log->end - log->end % RB_DISK_PAGE_BYTES;
}

static int64_t full(void)
{
    return -ENOSPC; /* the file accepts no more bytes, without an error */
}

/* Write all pieces at `place`.  0, or a negative errno. */
static int64_t write_cached(rb_log *log, rb_log_piece *pieces, int count, uint64_t place)
{
    rb_log_inside *in = log->inside;
    while (count > 0) {
        int64_t written = in->calls.write != NULL
                              ? in->calls.write(in->calls.context, pieces, count, place)
                              : pwritev(log->descriptor, (struct iovec *)pieces, count, (off_t)place);
        if (written < 0 && in->calls.write == NULL && errno == EINTR)
            continue;
        if (written <= 0)
            return written == 0 ? full() : in->calls.write != NULL ? written : -errno;
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

/* Start write-back of full pages only: a page that the next write extends would be written twice. */
static void start_writing(rb_log *log, uint64_t end)
{
    rb_disk *disk = &log->inside->disk;
    end -= end % RB_DISK_PAGE_BYTES;
    if (log->inside->calls.write != NULL || end < disk->started + START_BYTES)
        return;
    sync_file_range(log->descriptor, (off_t)disk->started, (off_t)(end - disk->started),
                    SYNC_FILE_RANGE_WRITE);
    disk->started = end;
}

int64_t rb_disk_write(rb_log *log, rb_log_piece *pieces, int count, uint64_t place)
{
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
    if (in->calls.sync != NULL)
        return in->calls.sync(in->calls.context);
    if (fdatasync(log->descriptor) != 0)
        return -errno;
    in->disk.started = log->end - log->end % RB_DISK_PAGE_BYTES;
    return 0;
}

void rb_disk_wake(int descriptor)
{
    uint64_t one = 1;
    if (descriptor >= 0 && write(descriptor, &one, sizeof one) < 0)
        return; /* the eventfd is full: its reader is already awake */
}

void rb_disk_yields(void)
{
    syscall(SYS_ioprio_set, 1 /* a thread */, 0 /* this one */,
            2 << 13 | 7 /* best effort, the last of it */);
}
