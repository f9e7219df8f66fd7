/* SPDX-License-Identifier: Apache-2.0
 *
 * Record: a record returned by a reader.  It is not a copy: it exports the payload in the ring's memory.
 *
 * A Record keeps the reader and its mapping alive.  With a blocking reader it also holds the memory until it
 * dies or is released.  With a plain reader, valid() reports whether the writer has overwritten the memory.
 * bytes() checks this after copying, and raises Overrun instead of returning torn data.
 */
#include "python/py_ring.h"

#include <string.h>

/* Millions of records are created and dropped one after another, so the last few objects are reused. */
#define SPARE_RECORDS 32
static record_object *spare[SPARE_RECORDS];
static int spares;

PyObject *record_new(reader_object *reader, batch_object *batch, const rb_view *view, uint64_t lease_number)
{
    record_object *self;
    if (spares > 0)
        self = (record_object *)PyObject_Init((PyObject *)spare[--spares], record_type);
    else
        self = PyObject_GC_New(record_object, record_type);
    if (self == NULL) {
        lease_end(reader, lease_number);
        return NULL;
    }
    self->reader = (reader_object *)Py_NewRef((PyObject *)reader);
    self->batch = batch == NULL ? NULL : (batch_object *)Py_NewRef((PyObject *)batch);
    self->view = *view;
    self->lease = lease_number;
    PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}

/* There is no tp_clear: records, batches and readers form no cycle without other objects. */
static int record_traverse(PyObject *object, visitproc visit, void *arg)
{
    record_object *self = (record_object *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)self->reader);
    Py_VISIT((PyObject *)self->batch);
    return 0;
}

static void record_dealloc(PyObject *object)
{
    record_object *self = (record_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    lease_end(self->reader, self->lease);
    Py_XDECREF((PyObject *)self->batch);
    Py_DECREF((PyObject *)self->reader);
    if (spares < SPARE_RECORDS)
        spare[spares++] = self;
    else
        PyObject_GC_Del(object);
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

/* A copy of part of the record, or Overrun if the writer has overwritten it. */
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

/* One byte, read in place: a third of the cost of a memoryview. */
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
    {"valid", (PyCFunction)record_valid, METH_NOARGS, "True if the memory still holds this record."},
    {"release", (PyCFunction)record_release, METH_NOARGS,
     "Release the record of a blocking reader; its memory may change from now on."},
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
    {"position", (getter)record_position, NULL, "Position of the record in the ring.", NULL},
    {0},
};

static PyType_Slot record_slots[] = {
    {Py_tp_doc, "One record; memoryview(record) is its payload, read-only and not copied."},
    {Py_tp_dealloc, record_dealloc},
    {Py_tp_traverse, record_traverse},
    {Py_tp_repr, record_repr},
    {Py_tp_methods, record_methods},
    {Py_tp_getset, record_fields},
    {Py_bf_getbuffer, record_buffer},
    {Py_sq_length, record_length},
    {Py_sq_item, record_item},
    {0},
};

PyType_Spec record_spec = {
    "ringbuf.Record", sizeof(record_object), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_GC, record_slots};
