/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of the Python type Engine for the groups of shared subscriptions (see py_engine.c).
 */
#include "python/py_engine.h"

/* Returns 0 with *out NULL for a stale handle. */
static int group_from(const engine_object *self, PyObject *object, mq_session **out)
{
    if (session_from(self, object, out) != 0)
        return -1;
    if (*out == NULL || (*out)->group != NULL)
        return 0;
    PyErr_Format(PyExc_ValueError, "%R is a session, not the queue of a group", object);
    return -1;
}

PyObject *engine_share_open(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long queue_max;
    if (take(count, 2) != 0 || unsigned_of(args[0], 1u << 30, &queue_max) != 0)
        return NULL;
    mq_session *queue = mq_share_open(self->engine, (uint32_t)queue_max, args[1] == Py_True);
    return queue == NULL ? PyErr_NoMemory() : PyLong_FromUnsignedLongLong(mq_handle(&queue->item));
}

PyObject *engine_share_join(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_session *queue, *session;
    unsigned long long options;
    HELD_VIEW identifiers = {0};
    if (take(count, 4) != 0 || view_of(args[3], &identifiers) != 0 ||
        group_from(self, args[0], &queue) != 0 || session_from(self, args[1], &session) != 0 ||
        unsigned_of(args[2], 255, &options) != 0)
        return NULL;
    bool joined = false;
    if (queue != NULL && session != NULL) {
        uint32_t ids = mq_subscription_ids_take(self->engine, mq_handle(&queue->item), identifiers.bytes,
                                                (uint32_t)identifiers.length);
        joined = ids != 0 &&
                 mq_share_join(self->engine, queue, session, (uint32_t)options | ids << MQ_OPTION_IDS_SHIFT);
        if (ids != 0)
            mq_subscription_ids_drop(self->engine, ids);
    }
    if (!joined && queue != NULL && session != NULL)
        return PyErr_NoMemory();
    return PyBool_FromLong(joined);
}

PyObject *engine_share_leave(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_session *queue, *session;
    if (take(count, 2) != 0 || group_from(self, args[0], &queue) != 0 ||
        session_from(self, args[1], &session) != 0)
        return NULL;
    if (queue != NULL && session != NULL)
        mq_share_leave(self->engine, queue, session);
    Py_RETURN_NONE;
}
