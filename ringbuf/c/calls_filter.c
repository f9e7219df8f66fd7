/* SPDX-License-Identifier: Apache-2.0
 *
 * KeyFilter: asks Python once for each distinct key, and remembers the answer.
 *
 * Bounded: beyond `capacity` keys it asks each time and keeps nothing new, and counts that in `unremembered`.
 */
#include "calls.h"

#include <string.h>

typedef struct known_key {
    char *bytes; /* NULL: free place */
    uint32_t length, hash;
    bool accepted;
} known_key;

struct filter_object {
    PyObject_HEAD
    PyObject *decide;
    known_key *known; /* open addressing, a power of two, at most half full */
    uint64_t places, count, capacity, unremembered;
};

#define PLACES_FIRST 64

static known_key *place_of(known_key *known, uint64_t places, const void *key, uint32_t length, uint32_t hash)
{
    for (uint64_t i = hash;; i++) {
        known_key *it = &known[i & (places - 1)];
        if (it->bytes == NULL ||
            (it->hash == hash && it->length == length && memcmp(it->bytes, key, length) == 0))
            return it;
    }
}

static int grow(filter_object *self)
{
    uint64_t places = self->places * 2;
    known_key *bigger = PyMem_Calloc(places, sizeof *bigger);
    if (bigger == NULL)
        return -1;
    for (uint64_t i = 0; i < self->places; i++) {
        known_key *it = &self->known[i];
        if (it->bytes != NULL)
            *place_of(bigger, places, it->bytes, it->length, it->hash) = *it;
    }
    PyMem_Free(self->known);
    self->known = bigger;
    self->places = places;
    return 0;
}

static void remember(filter_object *self, const char *key, uint32_t length, uint32_t hash, bool accepted)
{
    char *copy = NULL;
    if (self->count < self->capacity && (2 * (self->count + 1) <= self->places || grow(self) == 0))
        copy = PyMem_Malloc(length + 1);
    if (copy == NULL) {
        self->unremembered++;
        return;
    }
    memcpy(copy, key, length);
    *place_of(self->known, self->places, copy, length, hash) = (known_key){copy, length, hash, accepted};
    self->count++;
}

/* The key is copied before Python sees it and before it is remembered: it may lie in memory that changes.
 * Its hash is taken from the copy, since the one in the record need not fit a hostile writer's key. */
int filter_judge(filter_object *self, const void *key, uint32_t length, uint32_t hash)
{
    known_key *it = place_of(self->known, self->places, key, length, hash);
    if (it->bytes != NULL)
        return it->accepted;
    PyObject *copy = PyBytes_FromStringAndSize(key, (Py_ssize_t)length);
    if (copy == NULL)
        return -1;
    PyObject *answer = PyObject_CallFunctionObjArgs(self->decide, copy, NULL);
    int accepted = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    char *bytes;
    Py_ssize_t copied;
    if (accepted >= 0 && PyBytes_AsStringAndSize(copy, &bytes, &copied) == 0) {
        uint32_t true_hash = rb_crc32c(0, bytes, length);
        if (place_of(self->known, self->places, bytes, length, true_hash)->bytes == NULL)
            remember(self, bytes, length, true_hash, accepted);
    }
    Py_DECREF(copy);
    return accepted;
}

static PyObject *filter_accepts(filter_object *self, PyObject *key)
{
    bytes_view view;
    if (bytes_of(key, &view) != 0)
        return NULL;
    int accepted = filter_judge(self, view.bytes, (uint32_t)view.length,
                                rb_crc32c(0, view.bytes, (size_t)view.length));
    bytes_done(&view);
    return accepted < 0 ? NULL : PyBool_FromLong(accepted);
}

static void forget(filter_object *self)
{
    for (uint64_t i = 0; i < self->places; i++) {
        PyMem_Free(self->known[i].bytes);
        self->known[i].bytes = NULL;
    }
    self->count = 0;
}

static PyObject *filter_clear_known(filter_object *self, PyObject *Py_UNUSED(ignored))
{
    forget(self);
    Py_RETURN_NONE;
}

static PyObject *filter_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"decide", "capacity", NULL};
    PyObject *decide;
    long long capacity = 65536;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|L", names, &decide, &capacity))
        return NULL;
    if (!PyCallable_Check(decide) || capacity < 1) {
        PyErr_SetString(PyExc_TypeError,
                        "KeyFilter takes a callable of one key, and a capacity of at least 1");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    filter_object *self = (filter_object *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    self->decide = Py_NewRef(decide);
    self->capacity = (uint64_t)capacity;
    self->known = PyMem_Calloc(PLACES_FIRST, sizeof *self->known);
    if (self->known == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->places = PLACES_FIRST;
    return (PyObject *)self;
}

static int filter_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((filter_object *)object)->decide);
    return 0;
}

static int filter_clear(PyObject *object)
{
    Py_CLEAR(((filter_object *)object)->decide);
    return 0;
}

static void filter_dealloc(PyObject *object)
{
    filter_object *self = (filter_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    filter_clear(object);
    forget(self);
    PyMem_Free(self->known);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyObject *filter_count(filter_object *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(self->count);
}

static PyObject *filter_unremembered(filter_object *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(self->unremembered);
}

static PyMethodDef filter_methods[] = {
    {"accepts", (PyCFunction)filter_accepts, METH_O, "Whether a key passes."},
    {"clear", (PyCFunction)filter_clear_known, METH_NOARGS, "Forget all answers: the rules have changed."},
    {0},
};

static PyGetSetDef filter_fields[] = {
    {"count", (getter)filter_count, NULL, "Keys remembered.", NULL},
    {"unremembered", (getter)filter_unremembered, NULL, "Answers given without room to remember them.", NULL},
    {0},
};

static PyType_Slot filter_slots[] = {
    {Py_tp_doc, "KeyFilter(decide, capacity=65536): decide(key) is asked once for each distinct key."},
    {Py_tp_new, filter_new},
    {Py_tp_dealloc, filter_dealloc},
    {Py_tp_traverse, filter_traverse},
    {Py_tp_clear, filter_clear},
    {Py_tp_methods, filter_methods},
    {Py_tp_getset, filter_fields},
    {0},
};

PyType_Spec filter_spec = {"ringbuf.KeyFilter", sizeof(filter_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, filter_slots};
