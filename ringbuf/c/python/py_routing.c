/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of the Python type Engine for subscriptions, matches and the rules of new topics (see py_engine.c).
 */
#include "python/py_engine.h"

#include <stdlib.h>
#include <string.h>

#define MATCH_NAME "ringbuf.match"
#define PARTITIONS_MAX 65536u

static int filter_of(PyObject *object, bytes_view *out)
{
    if (view_of(object, out) != 0)
        return -1;
    if (out->length > 0 && out->length <= RB_KEY_MAX_BYTES)
        return 0;
    PyErr_Format(PyExc_ValueError, "a filter or name of %zd bytes (allowed: 1 to %d)", out->length,
                 (int)RB_KEY_MAX_BYTES);
    return -1;
}

/* ---- subscriptions ---- */

PyObject *engine_filter_add(engine_object *self, args_t args, Py_ssize_t count)
{
    HELD_VIEW filter = {0};
    unsigned long long session, options;
    if (take(count, 3) != 0 || filter_of(args[0], &filter) != 0 ||
        unsigned_of(args[1], UINT64_MAX, &session) != 0 || unsigned_of(args[2], UINT64_MAX, &options) != 0)
        return NULL;
    if (!mq_subscription_add(self->engine, filter.bytes, (uint32_t)filter.length, session, options))
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyObject *engine_filter_remove(engine_object *self, args_t args, Py_ssize_t count)
{
    HELD_VIEW filter = {0};
    unsigned long long session;
    if (take(count, 2) != 0 || filter_of(args[0], &filter) != 0 ||
        unsigned_of(args[1], UINT64_MAX, &session) != 0)
        return NULL;
    return PyBool_FromLong(
        mq_subscription_remove(self->engine, filter.bytes, (uint32_t)filter.length, session));
}

/* ---- topics that a filter matches ---- */

PyObject *engine_topics_match(engine_object *self, args_t args, Py_ssize_t count)
{
    HELD_VIEW filter = {0};
    unsigned long long most;
    uint32_t *topics, topic_count;
    if (take(count, 2) != 0 || filter_of(args[0], &filter) != 0 ||
        unsigned_of(args[1], UINT64_MAX, &most) != 0)
        return NULL;
    switch (
        mq_topics_match(self->engine, filter.bytes, (uint32_t)filter.length, most, &topics, &topic_count)) {
    case MQ_TOPICS_NO_MEMORY:
        return PyErr_NoMemory();
    case MQ_TOPICS_MANY:
        Py_RETURN_NONE;
    default:
        break;
    }
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)topics,
                                                topic_count * (Py_ssize_t)sizeof *topics);
    free(topics);
    return bytes;
}

/* ---- matches ---- */

typedef struct held_match { /* content of a capsule */
    mq_match match;
    PyObject *engine; /* must outlive the nodes that the match holds */
    char name[];
} held_match;

static void match_done(PyObject *capsule)
{
    held_match *held = PyCapsule_GetPointer(capsule, MATCH_NAME);
    if (held == NULL)
        return;
    mq_match_free(&held->match);
    Py_DECREF(held->engine);
    free(held);
}

PyObject *engine_match_begin(engine_object *self, args_t args, Py_ssize_t count)
{
    HELD_VIEW name = {0};
    unsigned long long session;
    if (take(count, 2) != 0 || filter_of(args[0], &name) != 0 ||
        unsigned_of(args[1], UINT64_MAX, &session) != 0)
        return NULL;
    held_match *held = calloc(1, sizeof *held + (size_t)name.length);
    if (held == NULL)
        return PyErr_NoMemory();
    memcpy(held->name, name.bytes, (size_t)name.length);
    PyObject *capsule = PyCapsule_New(held, MATCH_NAME, match_done);
    if (capsule == NULL) {
        free(held);
        return NULL;
    }
    held->engine = Py_NewRef((PyObject *)self);
    held->match.session = session;
    mq_match_begin(self->engine, &held->match, held->name, (uint32_t)name.length);
    return capsule;
}

static mq_match *match_of(const engine_object *self, PyObject *capsule)
{
    held_match *held = PyCapsule_GetPointer(capsule, MATCH_NAME);
    if (held == NULL)
        return NULL;
    if (held->engine == (const PyObject *)self)
        return &held->match;
    PyErr_SetString(PyExc_ValueError, "the match belongs to another engine");
    return NULL;
}

PyObject *engine_match_step(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long most;
    mq_match *match;
    if (take(count, 2) != 0 || unsigned_of(args[1], UINT32_MAX, &most) != 0 ||
        (match = match_of(self, args[0])) == NULL)
        return NULL;
    uint32_t work = (uint32_t)most;
    bool complete = mq_match_step(self->engine, match, &work);
    return match->failed ? PyErr_NoMemory() : PyBool_FromLong(complete);
}

PyObject *engine_match_sessions(engine_object *self, PyObject *capsule)
{
    const mq_match *match = match_of(self, capsule);
    if (match == NULL)
        return NULL;
    uint64_t *sessions = malloc((match->entry_count + 1) * sizeof *sessions);
    if (sessions == NULL)
        return PyErr_NoMemory();
    for (uint32_t i = 0; i < match->entry_count; i++)
        sessions[i] = match->entries[i].session;
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)sessions,
                                                match->entry_count * (Py_ssize_t)sizeof *sessions);
    free(sessions);
    return bytes;
}

PyObject *engine_match_routes(engine_object *self, args_t args, Py_ssize_t count)
{
    HELD_VIEW denied = {0};
    mq_topic *topic;
    mq_match *match;
    if (take(count, 3) != 0 || view_of(args[2], &denied) != 0 || topic_from(self, args[1], &topic) != 0 ||
        (match = match_of(self, args[0])) == NULL)
        return NULL;
    mq_match_without(self->engine, match, denied.bytes, (uint32_t)(denied.length / 8));
    if (!mq_match_routes(self->engine, match, topic))
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* ---- rules of new topics ---- */

static bool is_own_ring(const mq_engine *engine, unsigned long long ring)
{
    return ring < engine->ring_count && engine->rings[ring] != NULL &&
           engine->rings[ring]->kind == MQ_RING_OWN;
}

/* Read (filters, rings), with the rings as uint16.  False: an exception is set. */
static bool stream_of(engine_object *self, PyObject *pair, mq_stream *out)
{
    HELD_VIEW filters = {0};
    HELD_VIEW rings = {0};
    uint16_t ring;
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
        PyErr_SetString(PyExc_TypeError, "a stream is a tuple (filters, rings)");
        return false;
    }
    if (view_of(PyTuple_GetItem(pair, 0), &filters) != 0 || view_of(PyTuple_GetItem(pair, 1), &rings) != 0)
        return false;
    Py_ssize_t partitions = rings.length / (Py_ssize_t)sizeof ring;
    if (partitions == 0 || partitions > PARTITIONS_MAX) {
        PyErr_Format(PyExc_ValueError, "a stream of %zd partitions (allowed: 1 to %d)", partitions,
                     (int)PARTITIONS_MAX);
        return false;
    }
    for (Py_ssize_t i = 0; i < partitions; i++) {
        memcpy(&ring, (const char *)rings.bytes + i * (Py_ssize_t)sizeof ring, sizeof ring);
        if (ring != 0 && !is_own_ring(self->engine, ring)) {
            PyErr_Format(PyExc_ValueError, "%d is no ring", (int)ring);
            return false;
        }
    }
    if (mq_stream_init(out, filters.bytes, (uint32_t)filters.length, rings.bytes, (uint32_t)partitions))
        return true;
    PyErr_NoMemory();
    return false;
}

PyObject *engine_streams_set(engine_object *self, PyObject *list)
{
    if (!PyList_Check(list))
        return PyErr_Format(PyExc_TypeError, "expected a list, not %R", (PyObject *)Py_TYPE(list));
    Py_ssize_t count = PyList_Size(list), filled = 0;
    mq_stream *streams = calloc((size_t)count + 1, sizeof *streams);
    if (streams == NULL)
        return PyErr_NoMemory();
    while (filled < count && stream_of(self, PyList_GetItem(list, filled), &streams[filled]))
        filled++;
    if (filled < count) {
        mq_streams_free(streams, (uint32_t)filled);
        return NULL;
    }
    mq_streams_set(self->engine, streams, (uint32_t)count);
    Py_RETURN_NONE;
}

PyObject *engine_stream_ring(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long stream, partition, ring;
    if (take(count, 3) != 0 || unsigned_of(args[0], UINT32_MAX, &stream) != 0 ||
        unsigned_of(args[1], UINT32_MAX, &partition) != 0 ||
        unsigned_of(args[2], MQ_RINGS_MAX - 1, &ring) != 0)
        return NULL;
    mq_engine *engine = self->engine;
    if (stream >= engine->stream_count || partition >= engine->streams[stream].partitions ||
        !is_own_ring(engine, ring))
        return PyErr_Format(PyExc_ValueError, "stream %llu has no partition %llu, or %llu is no ring",
                            stream, partition, ring);
    engine->streams[stream].rings[partition] = (uint16_t)ring;
    Py_RETURN_NONE;
}

PyObject *engine_topic_limits(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long most_bytes, most_levels;
    if (take(count, 2) != 0 || unsigned_of(args[0], RB_KEY_MAX_BYTES, &most_bytes) != 0 ||
        unsigned_of(args[1], RB_KEY_MAX_BYTES, &most_levels) != 0)
        return NULL;
    self->engine->topic_max_bytes = (uint32_t)most_bytes;
    self->engine->topic_levels_max = (uint32_t)most_levels;
    Py_RETURN_NONE;
}

PyObject *engine_session_receives(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_session *session;
    if (take(count, 2) != 0 || session_from(self, args[0], &session) != 0)
        return NULL;
    if (session != NULL)
        session->receives_all = args[1] == Py_True;
    return PyBool_FromLong(session != NULL);
}

PyObject *engine_check_receivers(engine_object *self, PyObject *value)
{
    self->engine->receivers_checked = value == Py_True;
    Py_RETURN_NONE;
}
