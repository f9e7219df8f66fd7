/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of the Python type Engine for queued records of a session and pending retained messages (see
 * py_engine.c).
 */
#include "python/py_engine.h"
#include "mqtt/in/acl_rules.h"
#include "mqtt/out/frame.h"

#include <stdlib.h>

static uint32_t index_at(const bytes_view *topics, Py_ssize_t i)
{
    uint32_t index;
    memcpy(&index, (const char *)topics->bytes + i * (Py_ssize_t)sizeof index, sizeof index);
    return index;
}

PyObject *engine_send_retained(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_session *session;
    unsigned long long options;
    HELD_VIEW filter = {0}, topics = {0};
    bool listed = count == 4 && args[3] != Py_None;
    if (take(count, 4) != 0 || view_of(args[2], &filter) != 0 || (listed && view_of(args[3], &topics) != 0) ||
        session_from(self, args[0], &session) != 0 || unsigned_of(args[1], UINT32_MAX, &options) != 0)
        return NULL;
    mq_retained_scope scope = {.filter = filter.bytes,
                               .filter_length = (uint32_t)filter.length,
                               .topics = listed ? topics.bytes : NULL,
                               .count = listed ? (uint32_t)(topics.length / 4) : 0};
    if (listed && scope.topics == NULL)
        scope.topics = "";
    bool begun = session == NULL ||
                 mq_retained_delivery_begin(self->engine, session, (uint32_t)options, &scope);
    return begun ? PyBool_FromLong(session != NULL) : PyErr_NoMemory();
}

PyObject *engine_stop_retained(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_session *session;
    HELD_VIEW filter = {0};
    if (take(count, 2) != 0 || view_of(args[1], &filter) != 0 || session_from(self, args[0], &session) != 0)
        return NULL;
    if (session != NULL)
        mq_retained_delivery_end(self->engine, session, filter.bytes, (uint32_t)filter.length);
    Py_RETURN_NONE;
}

PyObject *engine_retained_arrived(engine_object *self, PyObject *handle)
{
    mq_session *session;
    if (session_from(self, handle, &session) != 0)
        return NULL;
    return PyBool_FromLong(session == NULL || mq_retained_deliveries_arrived(session));
}

PyObject *engine_queue_topics(engine_object *self, PyObject *handle)
{
    mq_session *session;
    if (session_from(self, handle, &session) != 0)
        return NULL;
    if (session == NULL)
        return PyBytes_FromStringAndSize("", 0);
    mq_session *again = session->group == NULL ? NULL : session->group->returned;
    mq_retained_deliveries_list(self->engine, session);
    size_t count = session->queue_count + (again == NULL ? 0 : again->queue_count), topic_count = 0;
    for (const mq_retained_delivery *delivery = session->retained_deliveries; delivery != NULL;
         delivery = delivery->next)
        count += delivery->count - delivery->at;
    uint32_t *topics = malloc((count + 1) * sizeof *topics);
    if (topics == NULL)
        return PyErr_NoMemory();
    topic_count += mq_queue_topics(self->engine, session, topics);
    if (again != NULL)
        topic_count += mq_queue_topics(self->engine, again, topics + topic_count);
    for (const mq_retained_delivery *delivery = session->retained_deliveries; delivery != NULL;
         delivery = delivery->next)
        for (uint32_t i = delivery->at; i < delivery->count; i++)
            topics[topic_count++] = delivery->topics[i];
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)topics,
                                                (Py_ssize_t)(topic_count * sizeof *topics));
    free(topics);
    return bytes;
}

PyObject *engine_queue_purge(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_session *session;
    HELD_VIEW topics = {0};
    if (take(count, 2) != 0 || view_of(args[1], &topics) != 0 || session_from(self, args[0], &session) != 0)
        return NULL;
    uint32_t topic_slots = self->engine->topics.created, purged = 0;
    uint8_t *denied = calloc(1, topic_slots / 8 + 1);
    for (Py_ssize_t i = 0; denied != NULL && i < topics.length / 4; i++) {
        uint32_t index = index_at(&topics, i);
        if (index < topic_slots)
            denied[index / 8] |= (uint8_t)(1u << index % 8);
    }
    if (denied != NULL && session != NULL) {
        purged = mq_purge(self->engine, session, denied);
        if (session->group != NULL && session->group->returned != NULL)
            purged += mq_purge(self->engine, session->group->returned, denied);
        mq_retained_deliveries_purge(session, denied);
    }
    free(denied);
    return denied == NULL ? PyErr_NoMemory() : PyLong_FromUnsignedLong(purged);
}

/* Append the names of the entries without a topic to `names`.  False: a Python error.  `before_log`: delivery
 * to a session waits for the first record that only the log has, and the names behind it are examined when it
 * was read.  The queues of a group do not wait: members take their records. */
static bool append_names(mq_engine *engine, const mq_session *session, bool before_log, PyObject *names)
{
    mq_frame frame;
    mq_walk walk = {0};
    bool whole = true;
    while (whole && mq_queue_next_unnamed(engine, session, before_log, &walk, &frame)) {
        PyObject *name = PyBytes_FromStringAndSize((const char *)frame.topic, frame.topic_length);
        whole = name != NULL && PyList_Append(names, name) == 0;
        Py_XDECREF(name);
    }
    return whole;
}

PyObject *engine_queue_names(engine_object *self, PyObject *handle)
{
    mq_session *session;
    if (session_from(self, handle, &session) != 0)
        return NULL;
    PyObject *names = PyList_New(0);
    if (names == NULL || session == NULL)
        return names;
    mq_session *again = session->group == NULL ? NULL : session->group->returned;
    if (!append_names(self->engine, session, session->group == NULL, names) ||
        (again != NULL && !append_names(self->engine, again, false, names)))
        Py_CLEAR(names);
    return names;
}

static Py_ssize_t apply_verdicts(mq_engine *engine, mq_session *session, bool before_log,
                                 const bytes_view *denied, Py_ssize_t at)
{
    mq_frame frame;
    mq_walk walk = {0};
    while (at < denied->length && mq_queue_next_unnamed(engine, session, before_log, &walk, &frame))
        mq_queue_resolve_name(engine, session, &walk, &frame, ((const char *)denied->bytes)[at++] != 0);
    return at;
}

PyObject *engine_queue_resolve_names(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_session *session;
    HELD_VIEW denied = {0};
    if (take(count, 2) != 0 || view_of(args[1], &denied) != 0 || session_from(self, args[0], &session) != 0)
        return NULL;
    if (session != NULL) {
        Py_ssize_t at = apply_verdicts(self->engine, session, session->group == NULL, &denied, 0);
        if (session->group != NULL && session->group->returned != NULL)
            apply_verdicts(self->engine, session->group->returned, false, &denied, at);
    }
    Py_RETURN_NONE;
}

static bool is_denied(const mq_engine *engine, uint32_t index, const mq_acl_rules *rules,
                      const bytes_view *prefix)
{
    const mq_topic *topic = mq_slab_at(&engine->topics, index);
    uint32_t hidden = (uint32_t)prefix->length;
    if (topic == NULL || !(topic->item.generation & 1) || topic->length <= hidden ||
        (hidden == 0 ? mq_is_of_tenants(topic->name, topic->length)
                     : memcmp(topic->name, prefix->bytes, hidden) != 0))
        return true;
    return !mq_acl_rules_allow(rules, topic->name + hidden, topic->length - hidden);
}

PyObject *engine_topics_denied(engine_object *self, args_t args, Py_ssize_t count)
{
    HELD_VIEW topics = {0}, packed = {0}, prefix = {0};
    if (take(count, 3) != 0 || view_of(args[0], &topics) != 0 || view_of(args[1], &packed) != 0 ||
        view_of(args[2], &prefix) != 0)
        return NULL;
    uint32_t denied_count = 0;
    uint32_t *denied = malloc((size_t)topics.length + 4);
    mq_acl_rules *rules = mq_acl_rules_new(packed.bytes, (uint32_t)packed.length);
    for (Py_ssize_t i = 0; denied != NULL && rules != NULL && i < topics.length / 4; i++) {
        uint32_t index = index_at(&topics, i);
        if (is_denied(self->engine, index, rules, &prefix))
            denied[denied_count++] = index;
    }
    PyObject *bytes = denied == NULL || rules == NULL
                          ? PyErr_NoMemory()
                          : PyBytes_FromStringAndSize((const char *)denied,
                                                      denied_count * (Py_ssize_t)sizeof *denied);
    free(rules);
    free(denied);
    return bytes;
}

/* The topics of `object`, as uint32, that have a retained message. */
PyObject *engine_topics_retaining(engine_object *self, PyObject *object)
{
    HELD_VIEW topics = {0};
    uint32_t topic_count = 0;
    if (view_of(object, &topics) != 0)
        return NULL;
    uint32_t *remaining = malloc((size_t)topics.length + 4);
    for (Py_ssize_t i = 0; remaining != NULL && i < topics.length / 4; i++) {
        const mq_topic *topic = mq_slab_at(&self->engine->topics, index_at(&topics, i));
        if (topic != NULL && topic->item.generation & 1 && topic->retained != NULL)
            remaining[topic_count++] = topic->item.index;
    }
    PyObject *bytes = remaining == NULL
                          ? PyErr_NoMemory()
                          : PyBytes_FromStringAndSize((const char *)remaining,
                                                      topic_count * (Py_ssize_t)sizeof *remaining);
    free(remaining);
    return bytes;
}
