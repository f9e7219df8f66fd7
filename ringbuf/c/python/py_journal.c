/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of the Python type Engine for the journal and its replay at a restart (see py_engine.c).
 */
#include "python/py_engine.h"

#include <stdlib.h>
#include <string.h>

/* ---- writing ---- */

PyObject *engine_session_keep(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_session *session;
    if (take(count, 2) != 0 || session_from(self, args[0], &session) != 0)
        return NULL;
    if (session != NULL) {
        bool begins = args[1] == Py_True && !session->kept;
        session->kept = args[1] == Py_True;
        if (begins)
            mq_journal_section(self->engine, session);
    }
    return PyBool_FromLong(session != NULL);
}

PyObject *engine_journal_open(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long from, in_log;
    if (take(count, 4) != 0 || unsigned_of(args[1], UINT64_MAX, &from) != 0 ||
        unsigned_of(args[3], UINT64_MAX, &in_log) != 0)
        return NULL;
    if (!PyObject_TypeCheck(args[0], writer_type))
        return PyErr_Format(PyExc_TypeError, "expected a ringbuf Writer, not %R",
                            (PyObject *)Py_TYPE(args[0]));
    if (!((writer_object *)args[0])->open || ((writer_object *)args[0])->forks != forks)
        return fail("RingClosed", "(s)", "writer");
    PyObject *before = self->journal;
    self->journal = Py_NewRef(args[0]);
    mq_journal_open(self->engine, &((writer_object *)args[0])->writer, from, args[2] == Py_True, in_log);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

PyObject *engine_journal_close(engine_object *self, PyObject *Py_UNUSED(ignored))
{
    mq_journal_close(self->engine);
    Py_CLEAR(self->journal);
    Py_RETURN_NONE;
}

PyObject *engine_journal_is_short(engine_object *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(mq_journal_is_short(self->engine));
}

PyObject *engine_journal_append(engine_object *self, PyObject *object)
{
    HELD_VIEW note = {0};
    if (view_of(object, &note) != 0)
        return NULL;
    bool written = mq_journal_append_record(self->engine, note.bytes, (uint32_t)note.length);
    return PyBool_FromLong(written);
}

/* End position of the journal, for a snapshot with all events so far; None: not now. */
PyObject *engine_journal_end(engine_object *self, PyObject *at_once)
{
    const mq_journal *journal = &self->engine->journal;
    if (journal->writer == NULL || !mq_journal_end(self->engine, at_once == Py_True))
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(journal->writer->tail);
}

PyObject *engine_journal_sections(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long first, most;
    uint64_t length;
    if (take(count, 2) != 0 || unsigned_of(args[0], UINT32_MAX, &first) != 0 ||
        unsigned_of(args[1], UINT32_MAX, &most) != 0)
        return NULL;
    uint32_t next = (uint32_t)first;
    uint8_t *at = mq_journal_sections(self->engine, &next, most, &length);
    if (at == NULL)
        return PyErr_NoMemory();
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)at, (Py_ssize_t)length);
    free(at);
    if (bytes == NULL)
        return NULL;
    return next == UINT32_MAX ? Py_BuildValue("(NO)", bytes, Py_None) : Py_BuildValue("(NI)", bytes, next);
}

PyObject *engine_journal_snapshot_saved(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long from, due;
    if (take(count, 2) != 0 || unsigned_of(args[0], UINT64_MAX, &from) != 0 ||
        unsigned_of(args[1], UINT64_MAX, &due) != 0)
        return NULL;
    mq_journal_snapshot_saved(self->engine, from, due);
    Py_RETURN_NONE;
}

PyObject *engine_begin_retained_save(engine_object *self, PyObject *all)
{
    self->engine->retained_kept = true;
    mq_retained_save_begin(self->engine, all == Py_True);
    Py_RETURN_NONE;
}

PyObject *engine_retained_changes(engine_object *self, PyObject *object)
{
    unsigned long long most;
    uint64_t length, authors;
    if (unsigned_of(object, UINT32_MAX, &most) != 0)
        return NULL;
    uint8_t *changes = mq_retained_changes(self->engine, most, &length, &authors);
    if (changes == NULL)
        return PyErr_NoMemory();
    PyObject *found = Py_BuildValue("(y#y#O)", (const char *)changes, (Py_ssize_t)length,
                                    (const char *)changes + length, (Py_ssize_t)authors,
                                    self->engine->retained_saving.count > 0 ? Py_True : Py_False);
    free(changes);
    return found;
}

PyObject *engine_add_ended_ring(engine_object *self, PyObject *logged)
{
    uint64_t logged_to = logged == Py_True ? UINT64_MAX : 0;
    int index = mq_ring_add(self->engine, (mq_ring){.kind = MQ_RING_ENDED, .logged_to = logged_to});
    if (index < 0)
        return PyErr_Format(PyExc_OverflowError, "more than %d rings", MQ_RINGS_MAX - 1);
    PyObject *key = PyLong_FromLong(index);
    if (key == NULL || PyDict_SetItem(self->rings, key, Py_None) != 0)
        Py_CLEAR(key);
    return key;
}

#define MQ_PAST_END ((uint64_t)1 << 56) /* as NEVER_ENDS of edge/recovery/read_journal.py */

/* Position below which records have been routed.  A restart has routed all records of an ended ring. */
PyObject *engine_routed_position(engine_object *self, PyObject *object)
{
    unsigned long long index;
    if (unsigned_of(object, self->engine->ring_count - 1, &index) != 0)
        return NULL;
    const mq_ring *ring = self->engine->rings[index];
    uint64_t position = 0;
    if (ring != NULL && ring->kind == MQ_RING_OWN)
        position = mq_visible_position(ring);
    if (ring != NULL && ring->kind == MQ_RING_ENDED)
        position = MQ_PAST_END;
    if (ring != NULL && ring->kind == MQ_RING_OF_PRODUCER)
        position = ring->reader->cursor > ring->resume_at ? ring->reader->cursor : ring->resume_at;
    return PyLong_FromUnsignedLongLong(position);
}

/* Make the log of an own ring wait for the sync of the journal's present entries. */
PyObject *engine_block_log(engine_object *self, PyObject *object)
{
    unsigned long long index;
    if (unsigned_of(object, self->engine->ring_count - 1, &index) != 0)
        return NULL;
    mq_ring *ring = self->engine->rings[index];
    if (ring != NULL && ring->kind == MQ_RING_OWN)
        mq_block_log(self->engine, ring);
    Py_RETURN_NONE;
}

PyObject *engine_unblock_logs(engine_object *self, PyObject *Py_UNUSED(ignored))
{
    mq_reap_barrier(self->engine);
    Py_RETURN_NONE;
}

/* Lower the floor of the ring to `where`.  A copy counts at its record's position, where a restart looks
 * for it. */
static void lower(uint64_t *lowest, uint64_t where)
{
    if (where != MQ_NOWHERE && mq_where_ring(where) == 0)
        where = mq_where_blob(where)->origin;
    if (where != MQ_NOWHERE && mq_where_position(where) < lowest[mq_where_ring(where)])
        lowest[mq_where_ring(where)] = mq_where_position(where);
}

/* Lower the floors by the queued and in-flight records of `session`.  Returns the number of records. */
static uint64_t lower_by(uint64_t *lowest, const mq_session *session)
{
    mq_walk walk = {0};
    for (uint64_t n = session->sent_first; n < session->sent_next; n++)
        lower(lowest, session->sent[n & (session->sent_capacity - 1)].where);
    while (mq_queue_next(session, &walk))
        lower(lowest, mq_entry_at(walk.at).where);
    return session->queue_count + session->sent_next - session->sent_first;
}

/* A word for each ring: the lowest position that the sessions from number `first` on need.  Covers as many
 * sessions as have about `most` records.  Also returns the next number to continue with, or None. */
PyObject *engine_lowest_positions(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long first, most;
    uint64_t lowest[MQ_RINGS_MAX], seen = 0;
    if (take(count, 2) != 0 || unsigned_of(args[0], UINT32_MAX, &first) != 0 ||
        unsigned_of(args[1], UINT32_MAX, &most) != 0)
        return NULL;
    memset(lowest, 0xff, sizeof lowest);
    uint32_t next = (uint32_t)first, made = self->engine->sessions.created;
    for (; next < made && seen < most; next++) {
        const mq_session *session = mq_slab_at(&self->engine->sessions, next);
        seen += 1 + (session->item.generation & 1 ? lower_by(lowest, session) : 0);
    }
    lowest[0] = UINT64_MAX; /* copies of messages that were in no ring */
    PyObject *words = PyBytes_FromStringAndSize((const char *)lowest, sizeof lowest);
    if (words == NULL)
        return NULL;
    return next < made ? Py_BuildValue("(NI)", words, next) : Py_BuildValue("(NO)", words, Py_None);
}

/* ---- replay ---- */

static int is_restoring(const engine_object *self)
{
    if (self->replay != NULL)
        return 0;
    PyErr_SetString(PyExc_RuntimeError, "replay_begin() comes first");
    return -1;
}

PyObject *engine_replay_begin(engine_object *self, PyObject *Py_UNUSED(ignored))
{
    mq_journal_replay_free(self->replay);
    self->replay = mq_journal_replay_new(self->engine);
    if (self->replay == NULL)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyObject *engine_replay_end(engine_object *self, PyObject *Py_UNUSED(ignored))
{
    uint64_t lost = 0;
    if (self->replay != NULL) {
        lost = mq_journal_replay_lost(self->replay);
        mq_journal_replay_over(self->engine);
        mq_spill_drop_unused(self->engine);
    }
    mq_journal_replay_free(self->replay);
    self->replay = NULL;
    return PyLong_FromUnsignedLongLong(lost);
}

PyObject *engine_replay_session(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long number, handle;
    if (take(count, 2) != 0 || is_restoring(self) != 0 || unsigned_of(args[0], 0xffffff, &number) != 0 ||
        unsigned_of(args[1], UINT64_MAX, &handle) != 0)
        return NULL;
    if (!mq_journal_replay_session(self->replay, (uint32_t)number, handle))
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyObject *engine_replay_ring(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long number, ring, end, routed;
    if (take(count, 4) != 0 || is_restoring(self) != 0 ||
        unsigned_of(args[0], MQ_RINGS_MAX - 1, &number) != 0 ||
        unsigned_of(args[1], MQ_RINGS_MAX - 1, &ring) != 0 || unsigned_of(args[2], UINT64_MAX, &end) != 0 ||
        unsigned_of(args[3], UINT64_MAX, &routed) != 0)
        return NULL;
    mq_replayed_ring replayed = {.ring = (uint32_t)ring, .end = end, .routed = routed};
    mq_journal_replay_ring(self->replay, (uint32_t)number, &replayed);
    Py_RETURN_NONE;
}

PyObject *engine_replay_entries(engine_object *self, PyObject *object)
{
    HELD_VIEW entries = {0};
    if (view_of(object, &entries) != 0 || is_restoring(self) != 0)
        return NULL;
    bool whole = mq_journal_replay_entries(self->engine, self->replay, entries.bytes,
                                           (uint64_t)entries.length);
    return PyBool_FromLong(whole);
}

PyObject *engine_replayed_position(engine_object *self, PyObject *object)
{
    unsigned long long number;
    if (is_restoring(self) != 0 || unsigned_of(object, MQ_RINGS_MAX - 1, &number) != 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(mq_journal_replay_mark(self->replay, (uint32_t)number));
}

static PyObject *name_or_none(bool known, const mq_unknown *unknown)
{
    if (known)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)unknown->name, (Py_ssize_t)unknown->length);
}

/* Route the records of an own ring, which ends at its tail and wraps once. */
static bool route_ring(engine_object *self, uint32_t index, uint64_t position, uint64_t *from,
                       mq_unknown *unknown)
{
    const rb_writer *writer = self->engine->rings[index]->writer;
    while (position < writer->tail) {
        uint64_t at = position & writer->mask, left = writer->tail - position, end = writer->capacity - at;
        uint64_t length = left < end ? left : end;
        if (!mq_journal_replay_route(self->engine, self->replay, index, position, writer->data + at, length,
                                     from, unknown))
            return false;
        position += length;
    }
    return true;
}

PyObject *engine_replay_route(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long index, position, begin;
    HELD_VIEW records = {0};
    mq_unknown unknown = {0};
    if (take(count, 4) != 0 || (args[2] != Py_None && view_of(args[2], &records) != 0) ||
        is_restoring(self) != 0 || unsigned_of(args[0], self->engine->ring_count - 1, &index) != 0 ||
        unsigned_of(args[1], UINT64_MAX, &position) != 0 || unsigned_of(args[3], UINT64_MAX, &begin) != 0)
        return NULL;
    const mq_ring *ring = self->engine->rings[index];
    uint64_t from = begin;
    bool known = true;
    if (args[2] == Py_None) {
        if (ring == NULL || ring->kind != MQ_RING_OWN || !rb_writer_keeps(ring->writer, position))
            return PyErr_Format(PyExc_ValueError, "ring %llu has no record at %llu", index, position);
        known = route_ring(self, (uint32_t)index, position, &from, &unknown);
    } else {
        known = mq_journal_replay_route(self->engine, self->replay, (uint32_t)index, position, records.bytes,
                                        (uint64_t)records.length, &from, &unknown);
    }
    PyObject *name = name_or_none(known, &unknown);
    return name == NULL ? NULL : Py_BuildValue("(KN)", (unsigned long long)from, name);
}

PyObject *engine_replay_resolve(engine_object *self, PyObject *handle)
{
    mq_session *session;
    mq_unknown unknown = {0};
    if (is_restoring(self) != 0 || session_from(self, handle, &session) != 0)
        return NULL;
    bool known = session == NULL || mq_journal_replay_resolve(self->engine, self->replay, session, &unknown);
    return name_or_none(known, &unknown);
}

PyObject *engine_replay_refuse_topics(engine_object *self, PyObject *Py_UNUSED(ignored))
{
    if (is_restoring(self) != 0)
        return NULL;
    mq_journal_replay_refuse(self->replay);
    Py_RETURN_NONE;
}

/* Get a ring, NULL if it was removed, and a position from two arguments.  0, or -1 with an exception. */
static int ring_and_position(engine_object *self, args_t args, Py_ssize_t count, mq_ring **ring,
                             unsigned long long *position)
{
    unsigned long long index;
    if (take(count, 2) != 0 || unsigned_of(args[0], self->engine->ring_count - 1, &index) != 0 ||
        unsigned_of(args[1], UINT64_MAX, position) != 0)
        return -1;
    *ring = self->engine->rings[index];
    return 0;
}

PyObject *engine_replay_log(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_ring *ring;
    unsigned long long position;
    if (ring_and_position(self, args, count, &ring, &position) != 0)
        return NULL;
    if (ring != NULL)
        ring->logged_to = position;
    Py_RETURN_NONE;
}

PyObject *engine_replay_resume_ring(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_ring *ring;
    unsigned long long position;
    if (ring_and_position(self, args, count, &ring, &position) != 0)
        return NULL;
    if (ring != NULL)
        ring->resume_at = position;
    Py_RETURN_NONE;
}
