/* SPDX-License-Identifier: Apache-2.0
 *
 * Commit index: see commit_index.h.
 */
#include "ring/commit_index.h"

#include <stdlib.h>
#include <string.h>

#include "ring/ring.h"

rb_commit_index *rb_commit_index_new(void)
{
    rb_commit_index *commit_index = aligned_alloc(_Alignof(rb_commit_index), sizeof *commit_index);
    if (commit_index != NULL)
        memset(commit_index, 0, sizeof *commit_index); /* no reader looks for a chunk at position 0 */
    return commit_index;
}

void rb_commit_index_free(rb_commit_index *commit_index)
{
    free(commit_index);
}

void rb_writer_commit_index(rb_writer *writer, rb_commit_index *commit_index)
{
    /* pairs with the acquire in leave_step() and leave_tail(): the zeros are stored before the pointer */
    atomic_store_explicit(&writer->commit_index, commit_index, memory_order_release);
}

void rb_reader_commit_index(rb_reader *reader, const rb_commit_index *commit_index)
{
    reader->commit_index = reader->blocks_writer ? commit_index : NULL;
}
