/* SPDX-License-Identifier: Apache-2.0
 *
 * KeyFilter: calls Python once for each distinct key and caches the answer.
 *
 * The cache is bounded.  Beyond `capacity` keys, or their total bytes, it calls Python each time, caches no
 * further keys, and counts them in `unremembered`.  Keys are topics of any client, so the table is hashed
 * under its own random key.  Colliding topics for the hash in the record are easy to construct.
 */
#include "python/py_ring.h"
#include "base/hash.h"

#include <string.h>

typedef struct known_key {
    char *bytes; /* NULL: free place */
    uint64_t hash;
    uint32_t length;
    bool accepted;
} known_key;

struct filter_object {
    PyObject_HEAD
    PyObject *decide;
    known_key *known; /* open addressing, a power of two, at most half full */
    uint64_t places, count, capacity, unremembered;
    uint64_t bytes, bytes_max; /* total of the keys */
    uint64_t seed[2];
};

#define PLACES_FIRST 64
#define CAPACITY_MAX (1ll << 30)
#define KEY_BYTES 256                       /* average budget per key */
#define BYTES_MIN (4ull * RB_KEY_MAX_BYTES) /* room for some long keys at a small capacity */

static known_key *place_of(known_key *known, uint64_t places, const void *key, uint32_t length, uint64_t hash)
{
    for (uint64_t i = hash;; i++) {
        known_key *entry = &known[i & (places - 1)];
        if (entry->bytes == NULL ||
            (entry->hash == hash && entry->length == length && memcmp(entry->bytes, key, length) == 0))
            return entry;
    }
}

static int grow(filter_object *self)
{
    uint64_t places = self->places * 2;
    known_key *bigger = PyMem_Calloc(places, sizeof *bigger);
    if (bigger == NULL)
        return -1;
    for (uint64_t i = 0; i < self->places; i++) {
        known_key *entry = &self->known[i];
        if (entry->bytes != NULL)
            *place_of(bigger, places, entry->bytes, entry->length, entry->hash) = *entry;
    }
    PyMem_Free(self->known);
    self->known = bigger;
    self->places = places;
    return 0;
}

static void remember(filter_object *self, const char *key, uint32_t length, uint64_t hash, bool accepted)
{
    char *copy = NULL;
    if (self->count < self->capacity && self->bytes + length <= self->bytes_max &&
        (2 * (self->count + 1) <= self->places || grow(self) == 0))
        copy = PyMem_Malloc(length + 1);
    if (copy == NULL) {
        self->unremembered++;
        return;
    }
    memcpy(copy, key, length);
    *place_of(self->known, self->places, copy, length, hash) = (known_key){copy, hash, length, accepted};
    self->count++;
    self->bytes += length;
}

/* The key is copied before Python gets it and before it is cached, because its memory may change.  The table
 * may also change while Python runs. */
int filter_matches(filter_object *self, const void *key, uint32_t length)
{
    known_key *entry = place_of(self->known, self->places, key, length, rb_hash(self->seed, key, length));
    if (entry->bytes != NULL)
        return entry->accepted;
    PyObject *copy = PyBytes_FromStringAndSize(key, (Py_ssize_t)length);
    if (copy == NULL)
        return -1;
    PyObject *answer = PyObject_CallFunctionObjArgs(self->decide, copy, NULL);
    int accepted = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    char *bytes;
    Py_ssize_t copied;
    if (accepted >= 0 && PyBytes_AsStringAndSize(copy, &bytes, &copied) == 0) {
        uint64_t hash = rb_hash(self->seed, bytes, length);
        if (place_of(self->known, self->places, bytes, length, hash)->bytes == NULL)
            remember(self, bytes, length, hash, accepted);
    }
    Py_DECREF(copy);
    return accepted;
}

static PyObject *filter_accepts(filter_object *self, PyObject *key)
{
    bytes_view view;
    if (bytes_of(key, &view) != 0)
        return NULL;
    int accepted = -1;
    if (view.length <= RB_KEY_MAX_BYTES)
        accepted = filter_matches(self, view.bytes, (uint32_t)view.length);
    else
        fail("KeyTooLong", "(nn)", view.length, (Py_ssize_t)RB_KEY_MAX_BYTES);
    bytes_done(&view);
    return accepted < 0 ? NULL : PyBool_FromLong(accepted);
}

static void forget(filter_object *self)
{
    for (uint64_t i = 0; i < self->places; i++) {
        PyMem_Free(self->known[i].bytes);
        self->known[i].bytes = NULL;
    }
    self->count = self->bytes = 0;
}

static PyObject *filter_clear_known(filter_object *self, PyObject *Py_UNUSED(ignored))
{
    forget(self);
    Py_RETURN_NONE;
}

/* Get 16 random bytes.  0, or -1 with an exception. */
static int seed_take(uint64_t seed[2])
{
    PyObject *os = PyImport_ImportModule("os");
    PyObject *random = os == NULL ? NULL : PyObject_CallMethod(os, "urandom", "i", 16);
    char *bytes = random == NULL ? NULL : PyBytes_AsString(random);
    if (bytes != NULL)
        memcpy(seed, bytes, 16);
    Py_XDECREF(random);
    Py_XDECREF(os);
    return bytes == NULL ? -1 : 0;
}

static PyObject *filter_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"decide", "capacity", NULL};
    PyObject *decide;
    long long capacity = 65536;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|L", names, &decide, &capacity))
        return NULL;
    if (!PyCallable_Check(decide) || capacity < 1 || capacity > CAPACITY_MAX)
        return PyErr_Format(PyExc_TypeError,
                            "KeyFilter takes a callable of one key, and a capacity of 1 to %lld",
                            CAPACITY_MAX);
    uint64_t seed[2];
    if (seed_take(seed) != 0)
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    filter_object *self = (filter_object *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    self->decide = Py_NewRef(decide);
    self->capacity = (uint64_t)capacity;
    self->bytes_max = self->capacity * KEY_BYTES + BYTES_MIN;
    memcpy(self->seed, seed, sizeof seed);
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

/* Length of the longest run of taken places: the most places compared for one key. */
static PyObject *filter_longest(filter_object *self, void *Py_UNUSED(closure))
{
    uint64_t longest = 0, run = 0;
    for (uint64_t i = 0; i < 2 * self->places; i++) { /* twice around: a run may wrap */
        run = self->known[i & (self->places - 1)].bytes == NULL ? 0 : run + 1;
        longest = run > longest ? run : longest;
    }
    return PyLong_FromUnsignedLongLong(longest);
}

static PyMethodDef filter_methods[] = {
    {"accepts", (PyCFunction)filter_accepts, METH_O, "True if a key passes."},
    {"clear", (PyCFunction)filter_clear_known, METH_NOARGS,
     "Forget all answers, after a change of the rules."},
    {0},
};

static PyGetSetDef filter_fields[] = {
    {"count", (getter)filter_count, NULL, "Keys remembered.", NULL},
    {"_longest", (getter)filter_longest, NULL, "Largest number of places examined for one key.", NULL},
    {"unremembered", (getter)filter_unremembered, NULL,
     "Answers that were not stored because the table was full.", NULL},
    {0},
};

static PyType_Slot filter_slots[] = {
    {Py_tp_doc, "KeyFilter(decide, capacity=65536): decide(key) is called once for each distinct key."},
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
