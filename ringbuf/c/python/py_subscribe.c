/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of the Python type Engine for SUBSCRIBE and UNSUBSCRIBE with many plain filters (see py_engine.c).
 *
 * mqtt/in/subscribe.h says which are plain.  Python decodes all others, and those with an error.
 */
#include "mqtt/in/subscribe.h"
#include "python/py_engine.h"

#include <string.h>

#define REMOVE_WORK (16u * MQ_MATCH_WORK) /* for all filters of an UNSUBSCRIBE */

static PyObject *list_of(const mq_plain_filters *filters)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < filters->count; i++) {
        PyObject *filter = PyUnicode_FromStringAndSize(filters->filter[i].text, filters->filter[i].length);
        if (filter == NULL || PyList_Append(list, filter) != 0)
            Py_CLEAR(list);
        Py_XDECREF(filter);
    }
    return list;
}

/* Decode the body of a SUBSCRIBE (`has_qos`) or UNSUBSCRIBE.  NULL without an exception: it is not plain. */
static PyObject *plain_filters(const engine_object *self, args_t args, Py_ssize_t count, bool has_qos,
                               mq_plain_filters *filters)
{
    HELD_VIEW body = {0};
    unsigned long long version, most;
    if (take(count, 3) != 0 || view_of(args[0], &body) != 0 || unsigned_of(args[1], 255, &version) != 0 ||
        unsigned_of(args[2], MQ_PLAIN_FILTERS_MAX, &most) != 0)
        return NULL;
    if (!mq_plain_filters_decode(self->engine, body.bytes, (size_t)body.length, (uint32_t)version, has_qos,
                                 (uint32_t)most, filters))
        return NULL;
    return list_of(filters);
}

static PyObject *none_unless_failed(void)
{
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

PyObject *engine_plain_subscribe(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_plain_filters filters;
    uint8_t qos[MQ_PLAIN_FILTERS_MAX];
    PyObject *list = plain_filters(self, args, count, true, &filters);
    if (list == NULL)
        return none_unless_failed();
    for (uint32_t i = 0; i < filters.count; i++)
        qos[i] = filters.filter[i].qos;
    return Py_BuildValue("(INy#)", filters.identifier, list, (const char *)qos, (Py_ssize_t)filters.count);
}

PyObject *engine_plain_unsubscribe(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_plain_filters filters;
    PyObject *list = plain_filters(self, args, count, false, &filters);
    if (list == NULL)
        return none_unless_failed();
    return Py_BuildValue("(IN)", filters.identifier, list);
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
                          ((const uint8_t *)qos.bytes)[i] & MQ_OPTION_QOS, &retains))
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

/* Find the subscriptions of a session that match a topic.  False: that takes more than *work. */
static bool match_of(mq_engine *engine, const mq_session *session, const mq_topic *topic, uint32_t *work)
{
    mq_match *match = &engine->match;
    mq_match_begin(engine, match, (const char *)topic->name, topic->length);
    match->session = mq_handle(&session->item);
    return mq_match_step(engine, match, work) && !match->failed;
}

/* Remove a subscription, and route its topic by the others of the session, which take no longer to find than
 * with it.  1, 0: it was not there, -1: finding them takes more than *work. */
static int remove_one(mq_engine *engine, mq_session *session, const char *filter, uint32_t length,
                      uint32_t *work)
{
    mq_topic *topic = mq_topic_find(engine, filter, length);
    bool may = topic == NULL || match_of(engine, session, topic, work);
    mq_match_reset(&engine->match);
    if (!may)
        return -1;
    mq_retained_delivery_end(engine, session, filter, length);
    if (!mq_subscription_remove(engine, filter, length, mq_handle(&session->item)))
        return 0;
    if (topic == NULL)
        return 1;
    uint32_t any = UINT32_MAX;
    mq_route_drop(engine, topic, session);
    if (match_of(engine, session, topic, &any))
        mq_match_routes(engine, &engine->match, topic);
    mq_match_reset(&engine->match);
    return 1;
}

PyObject *engine_filters_remove(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_session *session;
    uint32_t work = REMOVE_WORK;
    uint8_t removed[MQ_PLAIN_FILTERS_MAX];
    Py_ssize_t done = 0;
    if (take(count, 2) != 0 || session_from(self, args[1], &session) != 0)
        return NULL;
    if (!PyList_Check(args[0]) || session == NULL)
        return PyErr_Format(PyExc_ValueError, "filters are a list, and the session has not ended");
    for (; done < PyList_Size(args[0]) && done < (Py_ssize_t)MQ_PLAIN_FILTERS_MAX; done++) {
        Py_ssize_t length;
        const char *text = PyUnicode_AsUTF8AndSize(PyList_GetItem(args[0], done), &length);
        if (text == NULL)
            return NULL;
        int result = length > RB_KEY_MAX_BYTES
                         ? 0
                         : remove_one(self->engine, session, text, (uint32_t)length, &work);
        if (result < 0)
            break;
        removed[done] = (uint8_t)result;
    }
    return PyBytes_FromStringAndSize((const char *)removed, done);
}
