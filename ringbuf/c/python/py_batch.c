/* SPDX-License-Identifier: Apache-2.0
 *
 * Batch: records that a reader returns together, or records in the bytes of a Python object (of()), as
 * columns.
 *
 * A batch copies no record.  It keeps the reader alive and holds memory as a Record does (py_record.c).
 */
#include "python/py_ring.h"

#include <string.h>

struct batch_object {
    PyObject_HEAD
    reader_object *reader; /* owned */
    uint64_t lease;
    Py_ssize_t count, capacity;
    /* one allocation with all columns */
    uint64_t *offsets, *timestamps_ns, *positions;
    uint32_t *payload_positions, *payload_lengths, *key_hashes, *lengths;
    uint16_t *key_lengths, *flags;
};

#define BYTES_PER_RECORD (3 * sizeof(uint64_t) + 4 * sizeof(uint32_t) + 2 * sizeof(uint16_t))

static void batch_lay_out(batch_object *self, void *memory)
{
    self->offsets = memory;
    self->timestamps_ns = self->offsets + self->capacity;
    self->positions = self->timestamps_ns + self->capacity;
    self->payload_positions = (uint32_t *)(self->positions + self->capacity);
    self->payload_lengths = self->payload_positions + self->capacity;
    self->key_hashes = self->payload_lengths + self->capacity;
    self->lengths = self->key_hashes + self->capacity;
    self->key_lengths = (uint16_t *)(self->lengths + self->capacity);
    self->flags = self->key_lengths + self->capacity;
}

static void batch_put(batch_object *self, const rb_view *view)
{
    Py_ssize_t i = self->count++;
    self->offsets[i] = view->header.offset;
    self->timestamps_ns[i] = view->header.timestamp_ns;
    self->positions[i] = view->position;
    self->payload_positions[i] = view->parts.payload_position;
    self->payload_lengths[i] = view->parts.payload_length;
    self->key_hashes[i] = view->header.key_hash;
    self->lengths[i] = view->header.length;
    self->key_lengths[i] = view->header.key_length;
    self->flags[i] = view->header.flags;
}

static void batch_view(const batch_object *self, Py_ssize_t i, rb_view *view)
{
    const rb_reader *reader = &self->reader->reader;
    view->position = self->positions[i];
    view->bytes = reader->data + (view->position & reader->mask);
    view->header = (rb_record){.length = self->lengths[i], .offset = self->offsets[i],
                               .timestamp_ns = self->timestamps_ns[i], .key_hash = self->key_hashes[i],
                               .key_length = self->key_lengths[i], .flags = self->flags[i]};
    uint32_t after_key = RB_RECORD_HEADER_BYTES + self->key_lengths[i];
    view->parts = (rb_parts){.properties_position = after_key,
                             .payload_position = self->payload_positions[i],
                             .payload_length = self->payload_lengths[i]};
    if (view->header.flags & RB_FLAG_PROPERTIES) {
        rb_parts parts;
        if (rb_record_parts(&view->header, view->bytes, view->header.length, &parts) == RB_OK)
            view->parts.properties_length = parts.properties_length;
    }
}

/* Position at which a batch ends.  A batch of a blocking reader takes about a quarter of the ring, so that a
 * loop may request the next batch while it still holds the last. */
static uint64_t batch_limit(const reader_object *reader)
{
    return reader->reader.blocks_writer ? reader->reader.cursor + reader->reader.capacity / 4 : UINT64_MAX;
}

/* An empty batch with room for `capacity` records. */
static batch_object *batch_made(reader_object *reader, Py_ssize_t capacity)
{
    void *memory = PyMem_Malloc((size_t)(capacity + 1) * BYTES_PER_RECORD);
    batch_object *self = memory == NULL ? NULL : PyObject_GC_New(batch_object, batch_type);
    if (self == NULL) {
        PyMem_Free(memory);
        return (batch_object *)PyErr_NoMemory();
    }
    self->capacity = capacity;
    self->reader = (reader_object *)Py_NewRef((PyObject *)reader);
    self->lease = NO_LEASE;
    self->count = 0;
    batch_lay_out(self, memory);
    PyObject_GC_Track((PyObject *)self);
    return self;
}

typedef struct place {
    uint64_t cursor, offset, lost;
} place;

static place place_of_reader(const reader_object *reader)
{
    return (place){reader->reader.cursor, reader->reader.offset, reader->reader.lost};
}

static void place_reader(reader_object *reader, place at)
{
    reader->reader.cursor = at.cursor;
    reader->reader.offset = at.offset;
    reader->reader.lost = at.lost;
}

uint64_t records_to_end(const reader_object *reader)
{
    uint64_t unused, end;
    rb_end_read(reader->reader.header, &unused, &end);
    return end > reader->reader.offset ? end - reader->reader.offset : 0;
}

#define ROOM_FIRST 16 /* a shorter batch does not read the ring's end, a line that each publish writes */
#define TO_END 32     /* short batches, after which a writer no longer counts as one in publish_many() */

/* Make room for all records up to the ring's end, at most `limit`.  0, or -1 with MemoryError. */
static int batch_grow(batch_object *self, Py_ssize_t limit)
{
    uint64_t end, unused, most = (uint64_t)limit;
    rb_end_read(self->reader->reader.header, &unused, &end);
    uint64_t waiting = end > self->reader->reader.offset ? end - self->reader->reader.offset : 0;
    if (end + 1 < self->reader->reader.offset) /* publish() writes the end after each record */
        self->reader->to_end = TO_END;
    uint64_t count = (uint64_t)self->count, capacity = count + (waiting > count ? waiting : count);
    batch_object grown = {
        .capacity = (Py_ssize_t)(waiting > most - count || capacity > most ? most : capacity)};
    void *memory = PyMem_Malloc((size_t)(grown.capacity + 1) * BYTES_PER_RECORD);
    if (memory == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    batch_lay_out(&grown, memory);
    memcpy(grown.offsets, self->offsets, count * sizeof *self->offsets);
    memcpy(grown.timestamps_ns, self->timestamps_ns, count * sizeof *self->timestamps_ns);
    memcpy(grown.positions, self->positions, count * sizeof *self->positions);
    memcpy(grown.payload_positions, self->payload_positions, count * sizeof *self->payload_positions);
    memcpy(grown.payload_lengths, self->payload_lengths, count * sizeof *self->payload_lengths);
    memcpy(grown.key_hashes, self->key_hashes, count * sizeof *self->key_hashes);
    memcpy(grown.lengths, self->lengths, count * sizeof *self->lengths);
    memcpy(grown.key_lengths, self->key_lengths, count * sizeof *self->key_lengths);
    memcpy(grown.flags, self->flags, count * sizeof *self->flags);
    PyMem_Free(self->offsets);
    self->capacity = grown.capacity;
    batch_lay_out(self, memory);
    return 0;
}

/* Read up to `limit` records into the batch.  RB_OK, or the result that ended it.  If a filter raised,
 * earlier records are kept, and the next read calls the filter again.  An interrupt is raised at once; all
 * records are then read again later. */
static int batch_read(reader_object *reader, batch_object *self, Py_ssize_t limit)
{
    int result = RB_EMPTY;
    rb_view view;
    uint64_t end = batch_limit(reader);
    place begin = place_of_reader(reader), last = begin;
    while (self->count < limit && reader->reader.cursor < end) {
        last = place_of_reader(reader);
        result = self->count == self->capacity && batch_grow(self, limit) != 0 ? RAISED
                                                                               : reader_next(reader, &view);
        if (result != RB_OK)
            break;
        batch_put(self, &view);
    }
    if (result != RAISED || self->count == 0)
        return result;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        place_reader(reader, begin);
        return RAISED;
    }
    PyErr_Clear();
    place_reader(reader, last);
    return RB_OK;
}

/* A reader that follows publish_many() record by record takes the lines that it writes.  Batches then end at
 * the ring's end. */
PyObject *batch_new(reader_object *reader, Py_ssize_t limit)
{
    bool to_end = reader->to_end > 0;
    if (to_end) {
        uint64_t waiting = records_to_end(reader);
        limit = waiting >= (uint64_t)limit ? limit : waiting > 0 ? (Py_ssize_t)waiting : 1;
    }
    batch_object *self = batch_made(reader, to_end || limit < ROOM_FIRST ? limit : ROOM_FIRST);
    if (self == NULL)
        return NULL;
    int result = batch_read(reader, self, limit);
    if (to_end) {
        reader->run += (unsigned)self->count;
        reader->to_end = self->count >= ROOM_FIRST ? TO_END : reader->to_end - 1;
    }
    if (result == RAISED || (self->count == 0 && result != RB_EMPTY)) {
        Py_DECREF(self);
        return result == RAISED ? NULL : reader_trouble(reader, result);
    }
    if (self->count > 0)
        self->lease = lease_take(reader);
    else
        reader_settle(reader);
    return (PyObject *)self;
}

/* ---- a batch over bytes ---- */

/* Number of records in `length` bytes, up to the first with impossible lengths.  Checksums are checked
 * later. */
static Py_ssize_t records_in(const uint8_t *bytes, uint64_t length)
{
    rb_record header;
    rb_parts parts;
    Py_ssize_t count = 0;
    for (uint64_t at = 0, span, unused; at < length; at += span, count++)
        if ((span = rb_record_at(bytes + at, length - at, &header, &parts, &unused)) == 0)
            break;
    return count;
}

/* Replacement of a ring for records in the bytes of a Python object; positions are indexes into the bytes. */
static reader_object *reader_of_bytes(PyObject *bytes)
{
    static const rb_header nothing; /* granted is 0: all records count as valid */
    allocfunc allocate = (allocfunc)PyType_GetSlot(reader_type, Py_tp_alloc);
    reader_object *self = (reader_object *)allocate(reader_type, 0);
    if (self == NULL)
        return NULL;
    if (PyObject_GetBuffer(bytes, &self->ring, PyBUF_SIMPLE) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->reader.header = &nothing;
    self->reader.data = self->ring.buf;
    self->reader.capacity = (uint64_t)self->ring.len;
    self->reader.mask = UINT64_MAX;
    self->forks = forks;
    return self;
}

/* A run of records of one epoch.  Offsets are dense from `offset` on; if `end` is not 0, they rise below
 * it. */
typedef struct run {
    uint32_t epoch;
    uint64_t offset, end;
} run;

static bool can_follow(const run *expected, uint64_t offset)
{
    return expected->end == 0 ? offset == expected->offset
                              : offset >= expected->offset && offset < expected->end;
}

/* Put the records that verify and pass the filter into the batch.  0, or -1 with an exception. */
static int batch_fill(batch_object *self, uint64_t length, run expected, filter_object *match)
{
    rb_view view;
    uint64_t unused;
    for (uint64_t at = 0, span; at < length; at += span, expected.offset = view.header.offset + 1) {
        view.position = at;
        view.bytes = self->reader->reader.data + at;
        span = rb_record_at(view.bytes, length - at, &view.header, &view.parts, &unused);
        if (span == 0 || !can_follow(&expected, view.header.offset) ||
            !rb_record_verifies(&view.header, &view.parts, view.bytes, expected.epoch)) {
            fail("Corrupt", "(s)",
                 "a record in these bytes has lengths, a number or a checksum that cannot be");
            return -1;
        }
        int accepted = match == NULL ? 1
                                     : filter_matches(match, view.bytes + RB_RECORD_HEADER_BYTES,
                                                      view.header.key_length);
        if (accepted < 0)
            return -1;
        if (accepted && self->count < self->capacity)
            batch_put(self, &view);
    }
    return 0;
}

static PyObject *batch_of(PyObject *Py_UNUSED(type), PyObject *const *args, Py_ssize_t count)
{
    if (count < 4 || count > 5 || (args[3] != Py_None && Py_TYPE(args[3]) != filter_type)) {
        PyErr_SetString(PyExc_TypeError,
                        "of() takes bytes, epoch, the first offset, a KeyFilter or None, and perhaps an end");
        return NULL;
    }
    unsigned long long epoch = PyLong_AsUnsignedLongLong(args[1]);
    unsigned long long offset = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(args[2]);
    unsigned long long end = PyErr_Occurred() || count == 4 ? 0 : PyLong_AsUnsignedLongLong(args[4]);
    if (PyErr_Occurred())
        return NULL;
    if (epoch > UINT32_MAX)
        return PyErr_Format(PyExc_ValueError, "epoch %llu does not fit 32 bits", epoch);
    reader_object *reader = reader_of_bytes(args[0]);
    if (reader == NULL)
        return NULL;
    uint64_t length = (uint64_t)reader->ring.len;
    batch_object *self = batch_made(reader, records_in(reader->reader.data, length));
    Py_DECREF((PyObject *)reader); /* owned by the batch from now on */
    filter_object *match = args[3] == Py_None ? NULL : (filter_object *)args[3];
    if (self != NULL && batch_fill(self, length, (run){(uint32_t)epoch, offset, end}, match) != 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* As record_traverse(). */
static int batch_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)((batch_object *)object)->reader);
    return 0;
}

static void batch_dealloc(PyObject *object)
{
    batch_object *self = (batch_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    lease_end(self->reader, self->lease);
    PyMem_Free(self->offsets);
    Py_DECREF((PyObject *)self->reader);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static Py_ssize_t batch_length(PyObject *object)
{
    return ((batch_object *)object)->count;
}

static PyObject *batch_item(PyObject *object, Py_ssize_t i)
{
    batch_object *self = (batch_object *)object;
    rb_view view;
    if (i < 0 || i >= self->count) {
        PyErr_Format(PyExc_IndexError, "record %zd of a batch of %zd", i, self->count);
        return NULL;
    }
    batch_view(self, i, &view);
    return record_new(self->reader, self, &view, NO_LEASE);
}

static PyObject *batch_release(batch_object *self, PyObject *Py_UNUSED(ignored))
{
    lease_end(self->reader, self->lease);
    self->lease = NO_LEASE;
    Py_RETURN_NONE;
}

static PyObject *batch_valid(batch_object *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(self->count == 0 || rb_reader_holds(&self->reader->reader, self->positions[0]));
}

/* A column as a typed memoryview of a copy: at most 8 bytes per record, with no lifetime to manage. */
static PyObject *column(const void *values, Py_ssize_t count, Py_ssize_t width, const char *format)
{
    PyObject *copy = PyBytes_FromStringAndSize(values, count * width), *flat = NULL, *typed = NULL;
    if (copy != NULL)
        flat = PyMemoryView_FromObject(copy);
    if (flat != NULL)
        typed = PyObject_CallMethod(flat, "cast", "s", format);
    Py_XDECREF(flat);
    Py_XDECREF(copy);
    return typed;
}

#define COLUMN(name, format)                                                      \
    static PyObject *batch_##name(batch_object *self, void *Py_UNUSED(closure))  \
    {                                                                             \
        return column(self->name, self->count, sizeof *self->name, format);       \
    }
COLUMN(offsets, "Q")
COLUMN(timestamps_ns, "Q")
COLUMN(positions, "Q")
COLUMN(payload_positions, "I")
COLUMN(payload_lengths, "I")
COLUMN(key_hashes, "I")
COLUMN(key_lengths, "H")
COLUMN(flags, "H")

/* All flags combined: saves callers a loop over the records for rare flags. */
static PyObject *batch_any_flags(batch_object *self, void *Py_UNUSED(closure))
{
    unsigned long flags = 0;
    for (Py_ssize_t i = 0; i < self->count; i++)
        flags |= self->flags[i];
    return PyLong_FromUnsignedLong(flags);
}

/* The memory, for callers that process the records in C. */
static PyObject *batch_memory(batch_object *self, void *Py_UNUSED(closure))
{
    if (self->reader->reader.mask != UINT64_MAX) {
        PyErr_SetString(PyExc_AttributeError, "only a batch over bytes has memory");
        return NULL;
    }
    return PyMemoryView_FromObject(self->reader->ring.obj);
}

static PyMethodDef batch_methods[] = {
    {"of", (PyCFunction)(void (*)(void))batch_of, METH_FASTCALL | METH_CLASS,
     "The records in bytes, of one epoch, each checked; those that a filter takes.  Their offsets are dense "
     "from the first one on; with an end, they rise and stay below it."},
    {"release", (PyCFunction)batch_release, METH_NOARGS, "Release all records of a blocking reader."},
    {"valid", (PyCFunction)batch_valid, METH_NOARGS, "True if memory still holds all records of the batch."},
    {0},
};

static PyGetSetDef batch_fields[] = {
    {"offsets", (getter)batch_offsets, NULL, "u64 memoryview.", NULL},
    {"timestamps_ns", (getter)batch_timestamps_ns, NULL, "u64 memoryview.", NULL},
    {"positions", (getter)batch_positions, NULL, "u64 memoryview: where each record begins in the ring.",
     NULL},
    {"payload_positions", (getter)batch_payload_positions, NULL, "u32 memoryview: from the record's begin.",
     NULL},
    {"payload_lengths", (getter)batch_payload_lengths, NULL, "u32 memoryview.", NULL},
    {"key_hashes", (getter)batch_key_hashes, NULL, "u32 memoryview.", NULL},
    {"key_lengths", (getter)batch_key_lengths, NULL, "u16 memoryview.", NULL},
    {"flags", (getter)batch_flags, NULL, "u16 memoryview.", NULL},
    {"any_flags", (getter)batch_any_flags, NULL, "Flags of all records, combined.", NULL},
    {"memory", (getter)batch_memory, NULL, "The bytes that of() was given; positions are in it.", NULL},
    {0},
};

/* ---- iterating over a batch ---- */

typedef struct batch_iterator_object {
    PyObject_HEAD
    batch_object *batch; /* owned */
    Py_ssize_t next;
} batch_iterator_object;

static PyObject *batch_iter(PyObject *object)
{
    batch_iterator_object *self = PyObject_GC_New(batch_iterator_object, batch_iterator_type);
    if (self == NULL)
        return NULL;
    self->batch = (batch_object *)Py_NewRef(object);
    self->next = 0;
    PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}

/* As record_traverse(). */
static int iterator_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)((batch_iterator_object *)object)->batch);
    return 0;
}

static PyObject *iterator_next(PyObject *object)
{
    batch_iterator_object *self = (batch_iterator_object *)object;
    if (self->next >= self->batch->count)
        return NULL;
    return batch_item((PyObject *)self->batch, self->next++);
}

static PyObject *iterator_itself(PyObject *self)
{
    return Py_NewRef(self);
}

static void iterator_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_DECREF((PyObject *)((batch_iterator_object *)object)->batch);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyType_Slot iterator_slots[] = {
    {Py_tp_dealloc, iterator_dealloc},
    {Py_tp_traverse, iterator_traverse},
    {Py_tp_iter, iterator_itself},
    {Py_tp_iternext, iterator_next},
    {0},
};

PyType_Spec batch_iterator_spec = {
    "ringbuf._BatchIterator", sizeof(batch_iterator_object), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_GC, iterator_slots};

static PyType_Slot batch_slots[] = {
    {Py_tp_doc, "Records read by one call: a sequence of Record, and columns for NumPy and Arrow."},
    {Py_tp_dealloc, batch_dealloc},
    {Py_tp_traverse, batch_traverse},
    {Py_tp_iter, batch_iter},
    {Py_tp_methods, batch_methods},
    {Py_tp_getset, batch_fields},
    {Py_sq_length, batch_length},
    {Py_sq_item, batch_item},
    {0},
};

PyType_Spec batch_spec = {
    "ringbuf.Batch", sizeof(batch_object), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_GC, batch_slots};
