/* SPDX-License-Identifier: Apache-2.0
 *
 * Record and Batch: what a reader hands out.  Neither copies: a Record exports its payload where it lies.
 *
 * Each keeps the reader alive, and with it the mapping; of a gating reader it also keeps the room, until it
 * dies or is released.  Of a plain reader valid() tells whether the writer has come round meanwhile; bytes()
 * looks after copying, and raises Overrun rather than return what may be torn.
 */
#include "calls.h"

#include <string.h>

/* ---- Record ---- */

/* Records are made and dropped one after another, by millions: the last few are kept, to be used again. */
#define SPARE_RECORDS 32
static record_object *spare[SPARE_RECORDS];
static int spares;

PyObject *record_new(reader_object *reader, batch_object *batch, const rb_view *view, uint64_t lease_number)
{
    record_object *self;
    if (spares > 0)
        self = (record_object *)PyObject_Init((PyObject *)spare[--spares], record_type);
    else
        self = PyObject_New(record_object, record_type);
    if (self == NULL) {
        lease_end(reader, lease_number);
        return NULL;
    }
    self->reader = (reader_object *)Py_NewRef((PyObject *)reader);
    self->batch = batch == NULL ? NULL : (batch_object *)Py_NewRef((PyObject *)batch);
    self->view = *view;
    self->lease = lease_number;
    return (PyObject *)self;
}

static void record_dealloc(PyObject *object)
{
    record_object *self = (record_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    lease_end(self->reader, self->lease);
    Py_XDECREF((PyObject *)self->batch);
    Py_DECREF((PyObject *)self->reader);
    if (spares < SPARE_RECORDS)
        spare[spares++] = self;
    else
        PyObject_Free(object);
    Py_DECREF(type);
}

static bool record_holds(const record_object *self)
{
    return rb_reader_holds(&self->reader->reader, self->view.position);
}

static int record_buffer(PyObject *object, Py_buffer *view, int flags)
{
    record_object *self = (record_object *)object;
    if (self->reader->forks != forks) {
        fail("UsedAfterFork", "(s)", "record");
        return -1;
    }
    return PyBuffer_FillInfo(view, object, (void *)(self->view.bytes + self->view.parts.payload_position),
                             (Py_ssize_t)self->view.parts.payload_length, 1, flags);
}

/* A copy of part of the record, or Overrun if the writer has come round. */
static PyObject *copied(record_object *self, uint32_t position, uint32_t length)
{
    if (self->reader->forks != forks)
        return fail("UsedAfterFork", "(s)", "record");
    PyObject *copy = PyBytes_FromStringAndSize((const char *)self->view.bytes + position, (Py_ssize_t)length);
    if (copy == NULL || record_holds(self))
        return copy;
    Py_DECREF(copy);
    return fail("Overrun", "(K)", 1ull);
}

static PyObject *record_bytes(record_object *self, PyObject *Py_UNUSED(ignored))
{
    return copied(self, self->view.parts.payload_position, self->view.parts.payload_length);
}

static PyObject *record_valid(record_object *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(record_holds(self));
}

static PyObject *record_release(record_object *self, PyObject *Py_UNUSED(ignored))
{
    lease_end(self->reader, self->lease);
    self->lease = NO_LEASE;
    Py_RETURN_NONE;
}

static Py_ssize_t record_length(PyObject *object)
{
    return (Py_ssize_t)((record_object *)object)->view.parts.payload_length;
}

/* One byte where it lies: for a glance, a third of what a memoryview costs. */
static PyObject *record_item(PyObject *object, Py_ssize_t i)
{
    record_object *self = (record_object *)object;
    if (self->reader->forks != forks)
        return fail("UsedAfterFork", "(s)", "record");
    if (i < 0 || i >= record_length(object)) {
        PyErr_SetString(PyExc_IndexError, "record index out of range");
        return NULL;
    }
    return PyLong_FromLong(self->view.bytes[self->view.parts.payload_position + (uint64_t)i]);
}

static PyObject *record_key(record_object *self, void *Py_UNUSED(closure))
{
    return copied(self, RB_RECORD_HEADER_BYTES, self->view.header.key_length);
}

static PyObject *record_properties(record_object *self, void *Py_UNUSED(closure))
{
    return copied(self, self->view.parts.properties_position, self->view.parts.properties_length);
}

#define NUMBER(name, expression)                                                   \
    static PyObject *record_##name(record_object *self, void *Py_UNUSED(closure)) \
    {                                                                              \
        return PyLong_FromUnsignedLongLong(expression);                            \
    }
NUMBER(offset, self->view.header.offset)
NUMBER(timestamp_ns, self->view.header.timestamp_ns)
NUMBER(flags, self->view.header.flags)
NUMBER(key_hash, self->view.header.key_hash)
NUMBER(position, self->view.position)

static PyObject *record_repr(PyObject *object)
{
    record_object *self = (record_object *)object;
    return PyUnicode_FromFormat("<Record offset=%llu length=%u>",
                                (unsigned long long)self->view.header.offset,
                                self->view.parts.payload_length);
}

static PyMethodDef record_methods[] = {
    {"bytes", (PyCFunction)record_bytes, METH_NOARGS, "A copy of the payload; Overrun if it may be torn."},
    {"__bytes__", (PyCFunction)record_bytes, METH_NOARGS, NULL},
    {"valid", (PyCFunction)record_valid, METH_NOARGS, "Whether the memory still holds this record."},
    {"release", (PyCFunction)record_release, METH_NOARGS,
     "Give up a gating reader's hold; memory may change from now on."},
    {0},
};

static PyGetSetDef record_fields[] = {
    {"offset", (getter)record_offset, NULL, "Number of the record in its partition.", NULL},
    {"timestamp_ns", (getter)record_timestamp_ns, NULL, "Wall clock when it was claimed, ns since 1970.",
     NULL},
    {"flags", (getter)record_flags, NULL, "RB_FLAG_* bits.", NULL},
    {"key", (getter)record_key, NULL, "The key (topic), copied.", NULL},
    {"key_hash", (getter)record_key_hash, NULL, "crc32c of the key.", NULL},
    {"properties", (getter)record_properties, NULL, "MQTT 5 properties in wire form, copied.", NULL},
    {"position", (getter)record_position, NULL, "Its place in the ring.", NULL},
    {0},
};

static PyType_Slot record_slots[] = {
    {Py_tp_doc, "One record; memoryview(record) is its payload, read-only and not copied."},
    {Py_tp_dealloc, record_dealloc},
    {Py_tp_repr, record_repr},
    {Py_tp_methods, record_methods},
    {Py_tp_getset, record_fields},
    {Py_bf_getbuffer, record_buffer},
    {Py_sq_length, record_length},
    {Py_sq_item, record_item},
    {0},
};

PyType_Spec record_spec = {"ringbuf.Record", sizeof(record_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, record_slots};

/* ---- Batch ---- */

struct batch_object {
    PyObject_HEAD
    reader_object *reader; /* owned */
    uint64_t lease;
    Py_ssize_t count, room;
    /* one allocation, columns one after another */
    uint64_t *offsets, *timestamps_ns, *positions;
    uint32_t *payload_positions, *payload_lengths, *key_hashes, *lengths;
    uint16_t *key_lengths, *flags;
};

#define BYTES_PER_RECORD (3 * sizeof(uint64_t) + 4 * sizeof(uint32_t) + 2 * sizeof(uint16_t))

static void batch_lay_out(batch_object *self, void *memory)
{
    self->offsets = memory;
    self->timestamps_ns = self->offsets + self->room;
    self->positions = self->timestamps_ns + self->room;
    self->payload_positions = (uint32_t *)(self->positions + self->room);
    self->payload_lengths = self->payload_positions + self->room;
    self->key_hashes = self->payload_lengths + self->room;
    self->lengths = self->key_hashes + self->room;
    self->key_lengths = (uint16_t *)(self->lengths + self->room);
    self->flags = self->key_lengths + self->room;
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

/* A gating reader's batch takes about a quarter of the ring, so that a loop may ask for the next one while it
 * still holds the last. */
static uint64_t gating_limit(const reader_object *reader)
{
    return reader->reader.gating ? reader->reader.cursor + reader->reader.capacity / 4 : UINT64_MAX;
}

PyObject *batch_new(reader_object *reader, Py_ssize_t limit)
{
    uint64_t waiting, unused;
    rb_end_read(reader->reader.header, &unused, &waiting);
    /* one may be ahead of the end */
    waiting = waiting > reader->reader.offset ? waiting - reader->reader.offset : 1;
    batch_object *self = PyObject_New(batch_object, batch_type);
    if (self == NULL)
        return NULL;
    self->room = (uint64_t)limit < waiting ? limit : (Py_ssize_t)waiting;
    self->reader = (reader_object *)Py_NewRef((PyObject *)reader);
    self->lease = NO_LEASE;
    self->count = 0;
    void *memory = PyMem_Malloc((size_t)self->room * BYTES_PER_RECORD);
    self->offsets = memory;
    if (memory == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    batch_lay_out(self, memory);
    int result = RB_EMPTY;
    rb_view view;
    uint64_t end = gating_limit(reader);
    while (self->count < self->room && reader->reader.cursor < end &&
           (result = reader_next(reader, &view)) == RB_OK)
        batch_put(self, &view);
    if (self->count == 0 && result != RB_EMPTY) {
        Py_DECREF(self);
        if (result == -100)
            return NULL;
        PyObject *none = reader_trouble(reader, result);
        Py_XDECREF(none);
        return none == NULL ? NULL : batch_new(reader, limit); /* counted overruns do not come here twice */
    }
    if (result == -100) { /* of the records before, the batch goes; the exception matters more */
        Py_DECREF(self);
        return NULL;
    }
    if (self->count > 0)
        self->lease = lease_take(reader);
    else
        reader_settle(reader);
    return (PyObject *)self;
}

/* ---- a batch over bytes ---- */

/* Records in `length` bytes, up to the first whose lengths cannot be: their checksums are for later. */
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

/* Puts those that verify, and pass the filter, into the batch.  0, or -1 with an exception. */
static int batch_fill(batch_object *self, uint64_t length, uint32_t epoch, uint64_t offset,
                      filter_object *match)
{
    rb_view view;
    uint64_t unused;
    for (uint64_t at = 0, span; at < length; at += span, offset++) {
        view.position = at;
        view.bytes = self->reader->reader.data + at;
        span = rb_record_at(view.bytes, length - at, &view.header, &view.parts, &unused);
        if (span == 0 || view.header.offset != offset ||
            !rb_record_verifies(&view.header, &view.parts, view.bytes, epoch)) {
            fail("Corrupt", "(s)",
                 "a record in these bytes has lengths, a number or a checksum that cannot be");
            return -1;
        }
        int accepted = match == NULL ? 1
                                     : filter_judge(match, view.bytes + RB_RECORD_HEADER_BYTES,
                                                    view.header.key_length, view.header.key_hash);
        if (accepted < 0)
            return -1;
        if (accepted && self->count < self->room)
            batch_put(self, &view);
    }
    return 0;
}

static PyObject *batch_of(PyObject *Py_UNUSED(type), PyObject *const *args, Py_ssize_t count)
{
    if (count != 4 || (args[3] != Py_None && Py_TYPE(args[3]) != filter_type)) {
        PyErr_SetString(PyExc_TypeError,
                        "of() takes bytes, epoch, the first offset, and a KeyFilter or None");
        return NULL;
    }
    unsigned long long epoch = PyLong_AsUnsignedLongLong(args[1]);
    unsigned long long offset = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(args[2]);
    if (PyErr_Occurred())
        return NULL;
    reader_object *reader = reader_of_bytes(args[0]);
    if (reader == NULL)
        return NULL;
    uint64_t length = (uint64_t)reader->ring.len;
    batch_object *self = PyObject_New(batch_object, batch_type);
    if (self == NULL) {
        Py_DECREF((PyObject *)reader);
        return NULL;
    }
    self->reader = reader; /* the batch's from now on */
    self->lease = NO_LEASE;
    self->count = 0;
    self->room = records_in(reader->reader.data, length);
    void *memory = PyMem_Malloc((size_t)(self->room + 1) * BYTES_PER_RECORD);
    self->offsets = memory;
    if (memory == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    batch_lay_out(self, memory);
    filter_object *match = args[3] == Py_None ? NULL : (filter_object *)args[3];
    if (batch_fill(self, length, (uint32_t)epoch, offset, match) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void batch_dealloc(PyObject *object)
{
    batch_object *self = (batch_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    lease_end(self->reader, self->lease);
    PyMem_Free(self->offsets);
    Py_DECREF((PyObject *)self->reader);
    PyObject_Free(object);
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

/* A column as a typed memoryview over a copy: 8 or fewer bytes a record, and no lifetime to think of. */
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

/* So that nobody has to look at each for what few have. */
static PyObject *batch_any_flags(batch_object *self, void *Py_UNUSED(closure))
{
    unsigned long flags = 0;
    for (Py_ssize_t i = 0; i < self->count; i++)
        flags |= self->flags[i];
    return PyLong_FromUnsignedLong(flags);
}

/* For whoever goes over the records in C. */
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
     "The records in bytes: a run of one epoch from an offset on, each checked; those that a filter takes."},
    {"release", (PyCFunction)batch_release, METH_NOARGS,
     "Give up a gating reader's hold on all its records."},
    {"valid", (PyCFunction)batch_valid, METH_NOARGS, "Whether memory still holds all of its records."},
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
    {"any_flags", (getter)batch_any_flags, NULL, "The flags that any of its records has.", NULL},
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
    batch_iterator_object *self = PyObject_New(batch_iterator_object, batch_iterator_type);
    if (self == NULL)
        return NULL;
    self->batch = (batch_object *)Py_NewRef(object);
    self->next = 0;
    return (PyObject *)self;
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
    Py_DECREF((PyObject *)((batch_iterator_object *)object)->batch);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyType_Slot iterator_slots[] = {
    {Py_tp_dealloc, iterator_dealloc},
    {Py_tp_iter, iterator_itself},
    {Py_tp_iternext, iterator_next},
    {0},
};

PyType_Spec batch_iterator_spec = {"ringbuf._BatchIterator", sizeof(batch_iterator_object), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, iterator_slots};

static PyType_Slot batch_slots[] = {
    {Py_tp_doc, "Records read by one call: a sequence of Record, and columns for NumPy and Arrow."},
    {Py_tp_dealloc, batch_dealloc},
    {Py_tp_iter, batch_iter},
    {Py_tp_methods, batch_methods},
    {Py_tp_getset, batch_fields},
    {Py_sq_length, batch_length},
    {Py_sq_item, batch_item},
    {0},
};

PyType_Spec batch_spec = {"ringbuf.Batch", sizeof(batch_object), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, batch_slots};
