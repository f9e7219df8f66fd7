/* SPDX-License-Identifier: Apache-2.0
 *
 * Compaction of the spill file: a session that is disconnected for long may need one copy in each extent, and
 * so keep the memory of all of them.
 *
 * Compaction begins when unneeded copies take more than half the bytes of needed ones plus a mebibyte.
 * Extents with a third or more unneeded bytes become victims.  Their copies are copied again elsewhere, and
 * every entry that points to one is changed.  This is done in slices, session by session, while normal work
 * continues.  An entry that is not changed yet points to the old copy, which stays until its last reference
 * ends.  The old copy holds a reference to the new one, so that other sessions find it.
 *
 * On a full file system, compaction chooses only extents whose copies fit into the extent reserved for
 * compaction.
 */
#include "mqtt/mqtt.h"

#define BEGIN_BYTES (1u << 20)
#define TIGHT_BYTES MQ_UNIT_BYTES
#define SLICE_ENTRIES 16384u
#define CLASSES 64u /* classes of extents by needed bytes */

static bool is_due(const mq_spill *spill)
{
    if (spill->error != 0)
        return spill->dead >= spill->tried + TIGHT_BYTES;
    return spill->dead >= spill->live / 2 + BEGIN_BYTES && spill->dead >= spill->tried + BEGIN_BYTES;
}

bool mq_spill_compacts(const mq_engine *engine)
{
    return engine->spill.compacting || is_due(&engine->spill);
}

/* ---- victims ---- */

static bool is_sparse(const mq_spill *spill, uint32_t unit)
{
    const mq_extent *extent = &spill->extents[unit];
    uint32_t used = extent->used - (uint32_t)sizeof(mq_extent_header);
    return extent->state == MQ_EXTENT_USED && extent->small && unit != spill->filling && extent->live > 0 &&
           (used - extent->live) * 3 > used;
}

static uint32_t class_of(const mq_extent *extent)
{
    return extent->live / (MQ_UNIT_BYTES / CLASSES);
}

/* The highest class up to which all sparse extents together fit in one unit. */
static uint32_t class_that_fits(const mq_spill *spill)
{
    uint64_t bytes[CLASSES + 1] = {0}, sum = 0;
    for (uint32_t unit = 1; unit < spill->top; unit++)
        if (is_sparse(spill, unit))
            bytes[class_of(&spill->extents[unit])] += spill->extents[unit].live;
    for (uint32_t i = 0; i < CLASSES; i++)
        if ((sum += bytes[i]) > MQ_UNIT_BYTES)
            return i;
    return CLASSES;
}

/* Choose the victims.  On a full file system, extents of the last class are taken only while they fit. */
static void choose(mq_spill *spill)
{
    bool tight = spill->error != 0;
    uint32_t class_max = tight ? class_that_fits(spill) : CLASSES;
    uint64_t left = tight ? MQ_UNIT_BYTES - MQ_UNIT_BYTES / 4 : UINT64_MAX;
    for (uint32_t unit = 1; unit < spill->top; unit++) {
        mq_extent *extent = &spill->extents[unit];
        if (!is_sparse(spill, unit) || class_of(extent) > class_max || extent->live > left)
            continue;
        extent->victim = true;
        left -= extent->live;
    }
}

/* ---- moving ---- */

/* Move the copy of *where if it is in a victim.  True: *where now points to the new copy. */
static bool move(mq_engine *engine, uint64_t *where)
{
    mq_spill *spill = &engine->spill;
    if (*where == MQ_NOWHERE || mq_where_ring(*where) != 0)
        return false;
    mq_blob *blob = mq_where_blob(*where);
    if (!mq_spill_has(spill, blob) || !spill->extents[mq_extent_of(spill, blob)].victim)
        return false;
    mq_blob *copy = mq_where_blob(blob->moved_to);
    if (copy == NULL) {
        copy = mq_spill_copy(engine, blob);
        if (copy == NULL)
            return false;
        copy->references = 1; /* reference of the old copy */
        blob->moved_to = (uint64_t)(uintptr_t)copy;
    }
    copy->references++;
    *where = (uint64_t)(uintptr_t)copy;
    mq_blob_done(engine, blob);
    return true;
}

static void move_session(mq_engine *engine, mq_session *session)
{
    mq_walk walk = {0};
    for (uint64_t n = session->sent_first; n < session->sent_next; n++)
        move(engine, &session->sent[n & (session->sent_capacity - 1)].where);
    while (mq_queue_next(session, &walk)) {
        uint64_t where = mq_entry_at(walk.at).where;
        if (move(engine, &where))
            mq_entry_move(walk.at, where);
    }
}

static void begin(mq_spill *spill)
{
    choose(spill);
    spill->compacting = true;
    spill->cursor = 0;
    spill->begun = spill->dead;
}

/* End the compaction.  Victims that could not be emptied keep their copies. */
static void end(mq_spill *spill)
{
    for (uint32_t unit = 1; unit < spill->top; unit++)
        spill->extents[unit].victim = false;
    spill->compacting = false;
    spill->tried = spill->dead + MQ_UNIT_BYTES / 2 < spill->begun ? 0 : spill->dead;
}

void mq_spill_compact(mq_engine *engine)
{
    mq_spill *spill = &engine->spill;
    uint64_t seen = 0;
    if (!spill->compacting)
        begin(spill);
    while (spill->cursor < engine->sessions.created && seen < SLICE_ENTRIES) {
        mq_session *session = mq_slab_at(&engine->sessions, spill->cursor++);
        seen++;
        if (!(session->item.generation & 1))
            continue;
        seen += session->queue_count + session->sent_next - session->sent_first;
        move_session(engine, session);
    }
    if (spill->cursor >= engine->sessions.created)
        end(spill);
}
