/* SPDX-License-Identifier: Apache-2.0
 *
 * Reader: poll, read_many, iteration, waiting, seeking.
 */
#include "python/py_ring.h"

#include <string.h>

int reader_usable(const reader_object *self)
{
    if (!self->open)
        fail("RingClosed", "(s)", "reader");
    else if (self->forks != forks)
        fail("UsedAfterFork", "(s)", "reader");
    else
        return 0;
    return -1;
}

int reader_begin(reader_object *self)
{
    if (reader_usable(self) != 0)
        return -1;
    if (self->reading || self->waiting > 0) {
        fail("ReaderBusy", "(s)",
             self->reading ? "this reader is reading, for its filter or another thread"
                           : "another thread waits with this reader");
        return -1;
    }
    self->reading = true;
    return 0;
}

void reader_end(reader_object *self)
{
    self->reading = false;
}

/* Convert a result other than RB_OK and RB_EMPTY: None to continue, or NULL with the exception. */
PyObject *reader_trouble(reader_object *self, int result)
{
    uint64_t lost = self->reader.lost - self->told_lost;
    switch (result) {
    case RB_OVERRUN:
        if (self->counts_overruns)
            Py_RETURN_NONE;
        self->told_lost = self->reader.lost;
        return fail("Overrun", "(K)", (unsigned long long)lost);
    case RB_EVICTED:
        return fail("Evicted", "(K)", (unsigned long long)self->reader.offset);
    case RB_CORRUPT:
        return fail("Corrupt", "(s)",
                    "the record at the reader's cursor has lengths, a number or a checksum that cannot be");
    default:
        Py_RETURN_NONE;
    }
}

/* ---- reading ---- */

/* Begin a read if it is permitted: an overrun within the last batch is reported first, and one reader may
 * hold at most half the ring. */
static int read_allowed(reader_object *self)
{
    if (self->reader.lost != self->told_lost && !self->counts_overruns) {
        reader_trouble(self, RB_OVERRUN);
        return -1;
    }
    if (!self->reader.blocks_writer)
        return 0;
    if (self->reader.cursor - self->reader.released > self->reader.capacity / 2) {
        fail("HeldTooMuch", "(KK)", (unsigned long long)(self->reader.cursor - self->reader.released),
             (unsigned long long)(self->reader.capacity / 2));
        return -1;
    }
    if (self->lease_next - self->lease_first == self->lease_capacity)
        return leases_grow(self);
    return 0;
}

static int read_begin(reader_object *self)
{
    if (reader_begin(self) != 0)
        return -1;
    if (read_allowed(self) == 0)
        return 0;
    reader_end(self);
    return -1;
}

#define LAPS_MAX 64 /* overruns in a row before a counting reader reports no record */

/* Returns 1 if the filter accepts, 0 if not, -1 with an exception.  Meanwhile the filter may be replaced and
 * the reader closed. */
static int passes(reader_object *self, const rb_view *view)
{
    filter_object *match = (filter_object *)Py_NewRef((PyObject *)self->match);
    int accepted = filter_matches(match, view->bytes + RB_RECORD_HEADER_BYTES, view->header.key_length);
    Py_DECREF((PyObject *)match);
    return accepted < 0 || reader_usable(self) != 0 ? -1 : accepted;
}

/* Bytes of work on rejected records before other threads may run: about 0.3 ms. */
#define SLICE_BYTES (512u << 10)
#define JUDGE_BYTES 64u /* cost of one record; plus its bytes if checksums are verified */

/* Let other threads take the GIL from time to time while a filter rejects many records.  They may close the
 * reader or change its filter, but not read with it (reader_begin()).  0, or -1 with an exception. */
static int yield(reader_object *self, const rb_view *view)
{
    self->slice_bytes += JUDGE_BYTES + (self->reader.verify ? view->header.length : 0);
    if (self->slice_bytes < SLICE_BYTES)
        return 0;
    self->slice_bytes = 0;
    Py_BEGIN_ALLOW_THREADS
    Py_END_ALLOW_THREADS
    return reader_usable(self);
}

/* Read the next record that the filter accepts.  RB_OK, a result of rb_read(), or RAISED: the cursor is then
 * past the record for which the filter raised. */
int reader_next(reader_object *self, rb_view *view)
{
    for (int laps = 0;;) {
        uint64_t cursor = self->reader.cursor, offset = self->reader.offset;
        int result = rb_read(&self->reader, view);
        if (result == RB_OVERRUN && self->counts_overruns) {
            if (++laps == LAPS_MAX)
                return RB_EMPTY;
            continue;
        }
        if (result != RB_OK || self->match == NULL)
            return result;
        int accepted = passes(self, view);
        if (accepted < 0)
            return RAISED;
        if (!rb_reader_holds(&self->reader, view->position)) { /* the key was overwritten during the call */
            self->reader.cursor = cursor;
            self->reader.offset = offset;
            continue;
        }
        if (accepted)
            return RB_OK;
        if (yield(self, view) != 0)
            return RAISED;
    }
}

static PyObject *next_record(reader_object *self)
{
    rb_view view;
    uint64_t held = NO_LEASE;
    if (read_begin(self) != 0)
        return NULL;
    int result = reader_next(self, &view);
    if (result == RB_OK)
        held = lease_take(self);
    else if (result == RB_EMPTY)
        reader_settle(self);
    reader_end(self);
    if (result == RB_OK)
        return record_new(self, NULL, &view, held);
    return result == RAISED ? NULL : reader_trouble(self, result);
}

#define PAUSES_ONE 2    /* after one record, which may be an answer */
#define PAUSES_MOST 384 /* about 8 us */

/* Pause before the next look at an empty ring.  A look takes the line of the next record from the writer, and
 * the processor fetches the lines after a run, too.  The pause is about twice as long as the run, so that the
 * writer gets ahead and keeps its lines. */
static void pause_poll(reader_object *self)
{
    unsigned pauses = self->run < 2 ? PAUSES_ONE : self->run < PAUSES_MOST / 8 ? 8 * self->run : PAUSES_MOST;
    for (unsigned i = 0; i < pauses; i++)
        RB_PAUSE();
    self->run = 0;
}

/* Only compared.  A loop that polls other readers, too, does not pause: they may have records. */
static const reader_object *polled;

static PyObject *reader_poll(reader_object *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *record = next_record(self);
    if (record != Py_None)
        self->run++;
    else if (polled == self)
        pause_poll(self);
    polled = self;
    return record;
}

static PyObject *reader_read_many(reader_object *self, PyObject *const *args, Py_ssize_t count)
{
    Py_ssize_t limit = count == 1 ? PyLong_AsSsize_t(args[0]) : 256;
    if (count > 1 || limit < 1 || limit > 1 << 20) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "read_many takes one limit, 1 to 1048576 records");
        return NULL;
    }
    if (read_begin(self) != 0)
        return NULL;
    if (self->to_end > 0 && polled == self && records_to_end(self) == 0)
        pause_poll(self);
    polled = self;
    PyObject *batch = batch_new(self, limit);
    reader_end(self);
    return batch;
}

/* A signal ends a sleep, so its Python handler runs at once.  The handler of a signal just before a sleep
 * waits for the end of this time.  That is more likely for a reader without a slot, which sleeps more
 * often. */
#define WAIT_SLICE_NS 500000000ll
#define SLOTLESS_SLICE_NS 20000000ll

/* Returns 1 if a record is ready, 0 on timeout, -1 with an exception.  The GIL is kept if no wait is needed:
 * a busy thread would give it back only after milliseconds. */
static int reader_await(reader_object *self, int64_t timeout_ns)
{
    if (rb_peek(&self->reader) != RB_EMPTY)
        return 1;
    if (timeout_ns == 0)
        return 0;
    int64_t deadline = timeout_ns > INT64_MAX / 2 ? INT64_MAX : rb_now_ns() + timeout_ns;
    int64_t slice_ns = self->reader.slot == NULL ? SLOTLESS_SLICE_NS : WAIT_SLICE_NS;
    for (;;) {
        int64_t left = deadline == INT64_MAX ? slice_ns : deadline - rb_now_ns();
        int result;
        if (left < 0)
            left = 0;
        self->waiting++;
        Py_BEGIN_ALLOW_THREADS
        result = rb_reader_wait(&self->reader, self->spin_ns, left < slice_ns ? left : slice_ns);
        Py_END_ALLOW_THREADS
        self->waiting--;
        if (result != RB_TIMEOUT && result != RB_INTERRUPTED)
            return 1; /* also for errors: the next read reports them */
        if (PyErr_CheckSignals() != 0 || reader_usable(self) != 0)
            return -1;
        if (deadline != INT64_MAX && rb_now_ns() >= deadline)
            return 0;
    }
}

/* Any number of threads may wait, but not while the cursor moves. */
static int reader_begin_wait(reader_object *self)
{
    if (reader_usable(self) != 0)
        return -1;
    if (!self->reading)
        return 0;
    fail("ReaderBusy", "(s)", "this reader is reading, for its filter or another thread");
    return -1;
}

static PyObject *reader_wait(reader_object *self, PyObject *const *args, Py_ssize_t count)
{
    double seconds = 1e9;
    if (count > 0 && args[0] != Py_None)
        seconds = PyFloat_AsDouble(args[0]);
    if (count > 1 || !(seconds >= 0)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "wait takes a timeout in seconds, 0 or more, or None");
        return NULL;
    }
    if (reader_begin_wait(self) != 0)
        return NULL;
    int result = reader_await(self, seconds > 9e8 ? INT64_MAX : (int64_t)(seconds * 1e9));
    return result < 0 ? NULL : PyBool_FromLong(result);
}

static PyObject *reader_iternext(PyObject *object)
{
    reader_object *self = (reader_object *)object;
    for (;;) {
        PyObject *record = next_record(self);
        if (record != Py_None)
            return record;
        Py_DECREF(record);
        if (reader_await(self, INT64_MAX) < 0 || PyErr_CheckSignals() != 0)
            return NULL;
    }
}

static PyObject *reader_itself(PyObject *self)
{
    return Py_NewRef(self);
}

/* ---- seeking ---- */

/* End a seek.  Records from before the seek are not held any more: their leases would cover other places. */
static PyObject *seek_done(reader_object *self, int result)
{
    self->lease_first = self->lease_next;
    reader_end(self);
    if (result == RB_OVERRUN || result == RB_EMPTY)
        return fail("OffsetGone", "(K)", (unsigned long long)self->reader.offset);
    if (result != RB_OK)
        return reader_trouble(self, result);
    Py_RETURN_NONE;
}

static PyObject *reader_seek(reader_object *self, PyObject *offset)
{
    unsigned long long wanted;
    if (uint64_of(offset, "offset", &wanted) != 0 || reader_begin(self) != 0)
        return NULL;
    return seek_done(self, rb_seek_offset(&self->reader, wanted));
}

static PyObject *reader_seek_time(reader_object *self, PyObject *timestamp_ns)
{
    unsigned long long wanted;
    if (uint64_of(timestamp_ns, "timestamp_ns", &wanted) != 0 || reader_begin(self) != 0)
        return NULL;
    rb_seek_time(&self->reader, wanted);
    return seek_done(self, RB_OK);
}

static PyObject *reader_seek_oldest(reader_object *self, PyObject *Py_UNUSED(ignored))
{
    if (reader_begin(self) != 0)
        return NULL;
    rb_seek_oldest(&self->reader);
    return seek_done(self, RB_OK);
}

static PyObject *reader_seek_latest(reader_object *self, PyObject *Py_UNUSED(ignored))
{
    if (reader_begin(self) != 0)
        return NULL;
    rb_seek_latest(&self->reader);
    return seek_done(self, RB_OK);
}

/* Move the cursor to the next record that verifies, without the GIL.  Returns a result code. */
static PyObject *reader_skip(reader_object *self, PyObject *Py_UNUSED(ignored))
{
    int result;
    if (reader_begin(self) != 0)
        return NULL;
    self->detached = true;
    Py_BEGIN_ALLOW_THREADS result = rb_reader_skip_damage(&self->reader);
    Py_END_ALLOW_THREADS
    self->detached = false;
    reader_end(self);
    return PyLong_FromLong(result);
}

/* Store ranges in `array`, a writable buffer of rb_range, without the GIL.  Returns their number or a result
 * code. */
static PyObject *reader_ranges(reader_object *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer array;
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "ranges takes 2 arguments, %zd were given", count);
    unsigned long long limit_bytes = PyLong_AsUnsignedLongLong(args[0]);
    if ((limit_bytes == (unsigned long long)-1 && PyErr_Occurred()) ||
        PyObject_GetBuffer(args[1], &array, PyBUF_WRITABLE) != 0)
        return NULL;
    PyObject *found = NULL;
    if (reader_begin(self) == 0) {
        int result;
        self->detached = true;
        Py_BEGIN_ALLOW_THREADS
        result = rb_reader_ranges(&self->reader, limit_bytes, array.buf,
                                  (int)((size_t)array.len / sizeof(rb_range)));
        Py_END_ALLOW_THREADS
        self->detached = false;
        if (result >= 0 && !self->reader.blocks_writer) /* its slot may be up to a chunk behind */
            reader_settle(self);
        reader_end(self);
        found = PyLong_FromLong(result);
    }
    PyBuffer_Release(&array);
    return found;
}

/* Raise the exception for a result code of reads through cffi (log rounds, ranges). */
static PyObject *reader_raise(reader_object *self, PyObject *result)
{
    long value = PyLong_AsLong(result);
    if (value == -1 && PyErr_Occurred())
        return NULL;
    return reader_trouble(self, (int)value);
}

static PyObject *reader_release(reader_object *self, PyObject *position)
{
    unsigned long long wanted = PyLong_AsUnsignedLongLong(position);
    if (reader_usable(self) != 0 || (wanted == (unsigned long long)-1 && PyErr_Occurred()))
        return NULL;
    rb_reader_release(&self->reader, wanted);
    Py_RETURN_NONE;
}

static PyObject *reader_holds(reader_object *self, PyObject *position)
{
    unsigned long long wanted = PyLong_AsUnsignedLongLong(position);
    if (wanted == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(rb_reader_holds(&self->reader, wanted));
}

/* ---- making and closing ---- */

#define SPIN_MAX_NS 1000000000ll
#define CLOSE_LOOK_NS 50000

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"ring",   "slots",   "slot",    "blocks_writer", "counts_overruns",
                            "verify", "for_log", "spin_ns", NULL};
    PyObject *ring, *slots;
    int slot, blocks_writer, counts, verify, for_log;
    long long spin_ns;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOippppL", names, &ring, &slots, &slot, &blocks_writer,
                                     &counts, &verify, &for_log, &spin_ns))
        return NULL;
    if (spin_ns < 0 || spin_ns > SPIN_MAX_NS)
        return PyErr_Format(PyExc_ValueError, "spin_ns %lld is outside of 0 to %lld", spin_ns, SPIN_MAX_NS);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    reader_object *self = (reader_object *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    self->has_slots = slots != Py_None;
    if (PyObject_GetBuffer(ring, &self->ring, PyBUF_SIMPLE) != 0 ||
        (self->has_slots && PyObject_GetBuffer(slots, &self->slots, PyBUF_WRITABLE) != 0)) {
        Py_DECREF(self);
        return NULL;
    }
    if (self->has_slots && self->slots.len < RB_CURSORS_BYTES) {
        PyErr_Format(PyExc_ValueError, "slots of %zd bytes are shorter than %d", self->slots.len,
                     RB_CURSORS_BYTES);
        Py_DECREF(self);
        return NULL;
    }
    if (rb_reader_open(&self->reader, self->ring.buf, (uint64_t)self->ring.len,
                       self->has_slots ? self->slots.buf : NULL, slot, blocks_writer) != RB_OK) {
        Py_DECREF(self);
        return fail("Corrupt", "(s)", "the ring's header has changed since it was checked");
    }
    self->reader.verify = verify;
    self->reader.for_log = for_log;
    self->counts_overruns = counts;
    self->spin_ns = spin_ns;
    self->forks = forks;
    self->open = true;
    return (PyObject *)self;
}

static int reader_clear(PyObject *object)
{
    Py_CLEAR(((reader_object *)object)->match);
    return 0;
}

static PyObject *reader_close(reader_object *self, PyObject *Py_UNUSED(ignored))
{
    bool was_open = self->open;
    self->open = false;
    while (self->detached) { /* wait for the call of another thread, which still writes to the slot */
        Py_BEGIN_ALLOW_THREADS(void) rb_backoff(CLOSE_LOOK_NS);
        Py_END_ALLOW_THREADS
    }
    if (was_open && self->forks == forks)
        rb_reader_close(&self->reader);
    reader_clear((PyObject *)self); /* breaks a cycle: the filter often references the owner of the reader */
    Py_RETURN_NONE;
}

static int reader_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)((reader_object *)object)->match);
    return 0;
}

static void reader_dealloc(PyObject *object)
{
    reader_object *self = (reader_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    reader_clear(object);
    if (self->open && self->forks == forks)
        rb_reader_close(&self->reader);
    PyMem_Free(self->leases);
    PyBuffer_Release(&self->ring);
    if (self->has_slots)
        PyBuffer_Release(&self->slots);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* ---- fields ---- */

static PyObject *reader_address(reader_object *self, void *Py_UNUSED(closure))
{
    return reader_usable(self) != 0 ? NULL : PyLong_FromVoidPtr(&self->reader);
}

#define NUMBER(name, expression)                                                   \
    static PyObject *reader_##name(reader_object *self, void *Py_UNUSED(closure)) \
    {                                                                              \
        return PyLong_FromUnsignedLongLong(expression);                            \
    }
NUMBER(cursor, self->reader.cursor)
NUMBER(offset, self->reader.offset)
NUMBER(released, self->reader.released)
NUMBER(lost, self->reader.lost)
NUMBER(spin_ns, (unsigned long long)self->spin_ns)

static PyObject *reader_lag(reader_object *self, void *Py_UNUSED(closure))
{
    uint64_t position, offset;
    if (reader_usable(self) != 0)
        return NULL;
    rb_end_read(self->reader.header, &position, &offset);
    return PyLong_FromUnsignedLongLong(offset > self->reader.offset ? offset - self->reader.offset : 0);
}

static PyObject *reader_open(reader_object *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->open);
}

static PyObject *reader_get_match(reader_object *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->match == NULL ? Py_None : (PyObject *)self->match);
}

static int reader_set_match(reader_object *self, PyObject *value, void *Py_UNUSED(closure))
{
    if (value != NULL && value != Py_None && Py_TYPE(value) != filter_type) {
        PyErr_SetString(PyExc_TypeError, "match must be a KeyFilter or None");
        return -1;
    }
    PyObject *old = (PyObject *)self->match;
    self->match = value == NULL || value == Py_None ? NULL : (filter_object *)Py_NewRef(value);
    Py_XDECREF(old);
    return 0;
}

static PyMethodDef reader_methods[] = {
    {"poll", (PyCFunction)reader_poll, METH_NOARGS, "The next record, or None."},
    {"read_many", (PyCFunction)(void (*)(void))reader_read_many, METH_FASTCALL,
     "A Batch of up to `limit` records, perhaps none."},
    {"first_due", (PyCFunction)(void (*)(void))reader_first_due, METH_FASTCALL | METH_STATIC,
     "Index of the next of a list of readers, from an index on, with a record or an error; -1: none."},
    {"wait", (PyCFunction)(void (*)(void))reader_wait, METH_FASTCALL,
     "Wait for a record; False when the timeout (seconds) is over."},
    {"seek", (PyCFunction)reader_seek, METH_O, "Move to an offset; OffsetGone if it is not in the ring."},
    {"seek_time", (PyCFunction)reader_seek_time, METH_O,
     "Move to the first record at or after a time in ns."},
    {"seek_oldest", (PyCFunction)reader_seek_oldest, METH_NOARGS, "Move to the oldest record."},
    {"seek_latest", (PyCFunction)reader_seek_latest, METH_NOARGS, "Move behind the newest record."},
    {"_ranges", (PyCFunction)(void (*)(void))reader_ranges, METH_FASTCALL, "Fill an array of rb_range."},
    {"_skip_damage", (PyCFunction)reader_skip, METH_NOARGS, "Continue after damage."},
    {"_raise", (PyCFunction)reader_raise, METH_O, "Raise the exception of a result code of C."},
    {"release", (PyCFunction)reader_release, METH_O, "Release everything below a position (after ranges())."},
    {"holds", (PyCFunction)reader_holds, METH_O, "True if memory still holds the record read at a position."},
    {"close", (PyCFunction)reader_close, METH_NOARGS,
     "Free the slot and refuse further reads; records in hand stay mapped."},
    {0},
};

static PyGetSetDef reader_fields[] = {
    {"address", (getter)reader_address, NULL,
     "Address of the rb_reader, for C; valid while this object lives.", NULL},
    {"cursor", (getter)reader_cursor, NULL, "Position of the next record.", NULL},
    {"offset", (getter)reader_offset, NULL, "Offset of the next record.", NULL},
    {"released", (getter)reader_released, NULL, "Position below which nothing is held.", NULL},
    {"lost", (getter)reader_lost, NULL, "Records lost to overruns, in all.", NULL},
    {"lag", (getter)reader_lag, NULL, "Records between the cursor and the end.", NULL},
    {"open", (getter)reader_open, NULL, "True until the reader is closed.", NULL},
    {"spin_ns", (getter)reader_spin_ns, NULL, "Time that a wait spins before it sleeps.", NULL},
    {"match", (getter)reader_get_match, (setter)reader_set_match,
     "KeyFilter that records must pass, or None.", NULL},
    {0},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_doc, "A cursor over a ring."},
    {Py_tp_new, reader_new},
    {Py_tp_dealloc, reader_dealloc},
    {Py_tp_traverse, reader_traverse},
    {Py_tp_clear, reader_clear},
    {Py_tp_iter, reader_itself},
    {Py_tp_iternext, reader_iternext},
    {Py_tp_methods, reader_methods},
    {Py_tp_getset, reader_fields},
    {0},
};

PyType_Spec reader_spec = {"ringbuf.Reader", sizeof(reader_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, reader_slots};
