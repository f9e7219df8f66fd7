/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of the Python type Engine for the spill file (spill_file.h; see py_engine.c).
 */
#include "python/py_engine.h"

#include <string.h>

#define KNOWN_MAX 16

/* Arguments: (ring, ring name, epoch). */
PyObject *engine_set_ring_name(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long index, epoch;
    bytes_view name;
    if (take(count, 3) != 0 || unsigned_of(args[0], self->engine->ring_count - 1, &index) != 0 ||
        unsigned_of(args[2], UINT32_MAX, &epoch) != 0 || bytes_of(args[1], &name) != 0)
        return NULL;
    mq_ring *ring = self->engine->rings[index];
    bool fits = ring != NULL && name.length > 0 && name.length <= RB_NAME_MAX_BYTES;
    if (fits) {
        memcpy(ring->ring_name, name.bytes, (size_t)name.length);
        ring->ring_name_length = (uint8_t)name.length;
        ring->epoch = (uint32_t)epoch;
    }
    bytes_done(&name);
    if (fits)
        Py_RETURN_NONE;
    return PyErr_Format(PyExc_ValueError, "ring %llu, name of %zd bytes (allowed: 1 to %d)", index,
                        (Py_ssize_t)name.length, (int)RB_NAME_MAX_BYTES);
}

/* Read the epochs of known journals.  Returns their number, or -1 with an exception. */
static int known_from(PyObject *epochs, uint32_t known[KNOWN_MAX])
{
    Py_ssize_t count = PyTuple_Check(epochs) ? PyTuple_Size(epochs) : 0;
    if (count < 1 || count > KNOWN_MAX) {
        PyErr_Format(PyExc_ValueError, "a tuple of 1 to %d epochs is needed", KNOWN_MAX);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        unsigned long long epoch;
        if (unsigned_of(PyTuple_GetItem(epochs, i), UINT32_MAX, &epoch) != 0)
            return -1;
        known[i] = (uint32_t)epoch;
    }
    return (int)count;
}

/* (fd, epochs) -> number of copies found; None: the file is of another broker, and was not taken over. */
PyObject *engine_spill_open(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long fd;
    uint32_t known[KNOWN_MAX];
    int known_count;
    if (take(count, 2) != 0 || unsigned_of(args[0], INT32_MAX, &fd) != 0 ||
        (known_count = known_from(args[1], known)) < 0)
        return NULL;
    if (self->engine->spill.base != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a spill file is open");
        return NULL;
    }
    switch (mq_spill_open(self->engine, (int)fd, known, (uint32_t)known_count)) {
    case MQ_SPILL_UNUSABLE:
        Py_RETURN_NONE;
    case MQ_SPILL_FAILED:
        return PyErr_SetFromErrno(PyExc_OSError);
    default:
        return PyLong_FromUnsignedLong(self->engine->spill.index_count);
    }
}

PyObject *engine_spill_close(engine_object *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromUnsignedLongLong(mq_spill_close(self->engine));
}
