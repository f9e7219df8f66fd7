/* SPDX-License-Identifier: Apache-2.0
 *
 * Commit index: see trail.h.
 */
#include "trail.h"

#include <stdlib.h>
#include <string.h>

#include "ring.h"

rb_trail *rb_trail_new(void)
{
    rb_trail *trail = aligned_alloc(_Alignof(rb_trail), sizeof *trail);
    if (trail != NULL)
        memset(trail, 0, sizeof *trail); /* no reader looks for a chunk at position 0 */
    return trail;
}

void rb_trail_free(rb_trail *trail)
{
    free(trail);
}

void rb_writer_trail(rb_writer *writer, rb_trail *trail)
{
    /* pairs with the acquire in leave_step() and leave_tail(): the zeros are stored before the pointer */
    atomic_store_explicit(&writer->trail, trail, memory_order_release);
}

void rb_reader_trail(rb_reader *reader, const rb_trail *trail)
{
    reader->trail = reader->gating ? trail : NULL;
}
