/* SPDX-License-Identifier: Apache-2.0
 *
 * Trails: trail.h says what they are for.
 */
#include "trail.h"

#include <stdlib.h>
#include <string.h>

#include "ring.h"

rb_trail *rb_trail_new(void)
{
    rb_trail *trail = aligned_alloc(_Alignof(rb_trail), sizeof *trail);
    if (trail != NULL)
        memset(trail, 0, sizeof *trail); /* position 0 is in no chunk that is looked for */
    return trail;
}

void rb_trail_free(rb_trail *trail)
{
    free(trail);
}

void rb_writer_trail(rb_writer *writer, rb_trail *trail)
{
    /* pairs with the acquire in leave_step() and leave_tail(): its zeros are there before it is */
    atomic_store_explicit(&writer->trail, trail, memory_order_release);
}

void rb_reader_trail(rb_reader *reader, const rb_trail *trail)
{
    reader->trail = reader->gating ? trail : NULL;
}
