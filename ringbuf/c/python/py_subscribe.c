/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of the Python type Engine for a SUBSCRIBE with many plain filters (see py_engine.c).
 *
 * A filter is plain if it has no wildcards, names no group and no reserved topic, and is within the limits of
 * names.  Python decodes all other packets (edge/mqtt/decode.py), and those with an error.
 */
#include "python/py_engine.h"

#include <string.h>

#define VERSION_5 5u
#define QOS_MAX 2u

typedef struct cursor {
    const uint8_t *at, *end;
} cursor;

/* Read a 16-bit number.  False: the bytes end before. */
static bool number_at(cursor *body, uint32_t *out)
{
    if (body->end - body->at < 2)
        return false;
    *out = (uint32_t)body->at[0] << 8 | body->at[1];
    body->at += 2;
    return true;
}

/* Read a filter and its options, and append it to `filters`.  1; 0: it is not plain; -1: exception. */
static int filter_at(const mq_engine *engine, cursor *body, PyObject *filters, uint8_t *qos)
{
    uint32_t length;
    if (!number_at(body, &length) || (size_t)(body->end - body->at) < (size_t)length + 1)
        return 0;
    const char *text = (const char *)body->at;
    *qos = body->at[length];
    body->at += length + 1;
    if (*qos > QOS_MAX || !mq_name_is_ordinary(engine, text, length))
        return 0;
    PyObject *filter = PyUnicode_FromStringAndSize(text, (Py_ssize_t)length);
    int result = filter == NULL || PyList_Append(filters, filter) != 0 ? -1 : 1;
    Py_XDECREF(filter);
    return result;
}

/* Properties of MQTT 5 must be absent. */
static bool head_at(cursor *body, unsigned long long version, uint32_t *identifier)
{
    if (!number_at(body, identifier) || *identifier == 0)
        return false;
    return version != VERSION_5 || (body->at < body->end && *body->at++ == 0);
}

PyObject *engine_plain_subscribe(engine_object *self, args_t args, Py_ssize_t count)
{
    HELD_VIEW bytes = {0};
    unsigned long long version, most;
    if (take(count, 3) != 0 || view_of(args[0], &bytes) != 0 || unsigned_of(args[1], 255, &version) != 0 ||
        unsigned_of(args[2], MQ_PLAIN_FILTERS_MAX, &most) != 0)
        return NULL;
    cursor body = {.at = bytes.bytes, .end = (const uint8_t *)bytes.bytes + bytes.length};
    uint32_t identifier, found = 0;
    uint8_t qos[MQ_PLAIN_FILTERS_MAX];
    if (!head_at(&body, version, &identifier) || body.at == body.end)
        Py_RETURN_NONE;
    PyObject *filters = PyList_New(0);
    int plain = filters == NULL ? -1 : 1;
    while (plain == 1 && body.at < body.end)
        plain = found < most ? filter_at(self->engine, &body, filters, &qos[found++]) : 0;
    if (plain == 1)
        return Py_BuildValue("(INy#)", identifier, filters, (const char *)qos, (Py_ssize_t)found);
    Py_XDECREF(filters);
    if (plain < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Add a subscription and the route of its topic.  Its routes do not change otherwise: the session has no
 * other subscription that is no-local or has an identifier. */
static bool add_one(mq_engine *engine, mq_session *session, const char *filter, uint32_t length, uint32_t qos,
                    bool *retains)
{
    mq_topic *topic = mq_topic_find(engine, filter, length);
    *retains = topic != NULL && topic->retained != NULL;
    return mq_subscription_add(engine, filter, length, mq_handle(&session->item), qos) &&
           (topic == NULL || mq_route_merge(engine, topic, session, qos));
}

PyObject *engine_filters_add(engine_object *self, args_t args, Py_ssize_t count)
{
    HELD_VIEW qos = {0};
    mq_session *session;
    if (take(count, 3) != 0 || view_of(args[1], &qos) != 0 || session_from(self, args[2], &session) != 0)
        return NULL;
    if (!PyList_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "filters are a list");
    PyObject *retaining = PyList_New(0);
    bool well = retaining != NULL && session != NULL;
    for (Py_ssize_t i = 0; well && i < PyList_Size(args[0]) && i < qos.length; i++) {
        PyObject *filter = PyList_GetItem(args[0], i); /* borrowed */
        Py_ssize_t length;
        const char *text = PyUnicode_AsUTF8AndSize(filter, &length);
        bool retains = false;
        if (text == NULL || length > RB_KEY_MAX_BYTES)
            well = false;
        else if (!add_one(self->engine, session, text, (uint32_t)length,
                          ((const uint8_t *)qos.bytes)[i] & MQ_TAG_QOS, &retains))
            well = PyErr_NoMemory() != NULL;
        if (retains && PyList_Append(retaining, filter) != 0)
            well = false;
    }
    if (well)
        return retaining;
    Py_XDECREF(retaining);
    if (PyErr_Occurred())
        return NULL;
    return PyErr_Format(PyExc_ValueError, "the session has ended, or a filter is too long");
}
