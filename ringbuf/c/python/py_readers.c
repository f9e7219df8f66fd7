/* SPDX-License-Identifier: Apache-2.0
 *
 * Many readers at once: the next one with a record, for callers that read a run of each ring in turn.
 */
#include "python/py_ring.h"

#define READERS_AHEAD 2 /* a line of another core arrives after about two checks */

static reader_object *reader_in(PyObject *list, Py_ssize_t i)
{
    PyObject *item = PyList_GetItem(list, i % PyList_Size(list));
    if (PyObject_TypeCheck(item, reader_type))
        return (reader_object *)item;
    return (reader_object *)PyErr_Format(PyExc_TypeError, "a list of readers has a %R",
                                         (PyObject *)Py_TYPE(item));
}

/* True if a read would return a record or raise. */
static bool is_due(const reader_object *self)
{
    return !self->open || self->forks != forks || self->reading || rb_peek(&self->reader) != RB_EMPTY;
}

PyObject *reader_first_due(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count)
{
    Py_ssize_t begin = count == 2 ? PyLong_AsSsize_t(args[1]) : -1, all;
    if (begin < 0 || !PyList_CheckExact(args[0]) || begin > (all = PyList_Size(args[0]))) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "first_due takes a list of readers and an index of it");
        return NULL;
    }
    for (Py_ssize_t i = begin; i < begin + all; i++) {
        reader_object *reader = reader_in(args[0], i), *next = reader_in(args[0], i + READERS_AHEAD);
        if (reader == NULL || next == NULL)
            return NULL;
        __builtin_prefetch(next->reader.data + (next->reader.cursor & next->reader.mask));
        if (is_due(reader))
            return PyLong_FromSsize_t(i % all);
    }
    return PyLong_FromLong(-1);
}
