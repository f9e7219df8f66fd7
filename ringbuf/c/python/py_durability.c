/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of the Python type Engine for durability: state of a ring's log and of its sinks, reported by
 * Python.
 */
#include "python/py_engine.h"

#define OFFSET_MAX (UINT64_MAX >> 1) /* a gate adds to it */

static int own_ring_from(const engine_object *self, PyObject *object, uint32_t *out)
{
    unsigned long long index;
    if (unsigned_of(object, MQ_RINGS_MAX - 1, &index) != 0)
        return -1;
    const mq_ring *ring = index < self->engine->ring_count ? self->engine->rings[index] : NULL;
    if (ring == NULL || ring->kind != MQ_RING_OWN) {
        PyErr_Format(PyExc_ValueError, "ring %llu is not written by this process", index);
        return -1;
    }
    *out = (uint32_t)index;
    return 0;
}

PyObject *engine_refuse(engine_object *self, args_t args, Py_ssize_t count)
{
    uint32_t ring;
    unsigned long long reason;
    if (take(count, 2) != 0 || own_ring_from(self, args[0], &ring) != 0 ||
        unsigned_of(args[1], 255, &reason) != 0)
        return NULL;
    if (reason != 0 && reason < MQ_REASON_UNSPECIFIED_ERROR)
        return PyErr_Format(PyExc_ValueError, "invalid reason code %llu (allowed: 0, 128 to 255)", reason);
    mq_refuse_publishers(self->engine, ring, (uint8_t)reason);
    Py_RETURN_NONE;
}

PyObject *engine_upstream(engine_object *self, args_t args, Py_ssize_t count)
{
    uint32_t ring;
    unsigned long long offset;
    if (take(count, 2) != 0 || own_ring_from(self, args[0], &ring) != 0 ||
        unsigned_of(args[1], OFFSET_MAX, &offset) != 0)
        return NULL;
    mq_upstream_progress(self->engine, ring, offset);
    Py_RETURN_NONE;
}

PyObject *engine_upstream_lost(engine_object *self, args_t args, Py_ssize_t count)
{
    uint32_t ring;
    unsigned long long from, to;
    if (take(count, 3) != 0 || own_ring_from(self, args[0], &ring) != 0 ||
        unsigned_of(args[1], OFFSET_MAX, &from) != 0 || unsigned_of(args[2], OFFSET_MAX, &to) != 0)
        return NULL;
    mq_upstream_lost(self->engine, ring, from, to);
    Py_RETURN_NONE;
}
