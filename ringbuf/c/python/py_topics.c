/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of the Python type Engine for sessions, topics, routes and retained messages (see py_engine.c).
 */
#include "python/py_engine.h"

#include <stdlib.h>
#include <string.h>

/* ---- sessions ---- */

PyObject *engine_session_open(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long queue_max;
    if (take(count, 5) != 0 || unsigned_of(args[0], 1u << 30, &queue_max) != 0)
        return NULL;
    mq_session *session = mq_slab_take(&self->engine->sessions);
    if (session == NULL)
        return PyErr_NoMemory();
    if (session_client(self, session, args + 2) != 0) {
        mq_slab_give(&self->engine->sessions, &session->item);
        return NULL;
    }
    session->queue_max = (uint32_t)queue_max;
    session->drop_newest = args[1] == Py_True;
    return PyLong_FromUnsignedLongLong(mq_handle(&session->item));
}

PyObject *engine_session_close(engine_object *self, PyObject *handle)
{
    mq_session *session;
    if (session_from(self, handle, &session) != 0)
        return NULL;
    if (session != NULL) {
        if (session->connection != NULL)
            mq_connection_close(self->engine, session->connection, MQ_CLOSE_SERVER);
        mq_session_clear(self->engine, session);
        mq_slab_give(&self->engine->sessions, &session->item);
    }
    return PyBool_FromLong(session != NULL);
}

PyObject *engine_session_stats(engine_object *self, PyObject *handle)
{
    mq_session *session;
    if (session_from(self, handle, &session) != 0)
        return NULL;
    if (session == NULL)
        Py_RETURN_NONE;
    PyObject *dropped = PyTuple_New(MQ_DROP_CAUSES);
    for (int i = 0; dropped != NULL && i < MQ_DROP_CAUSES; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(session->dropped[i]);
        if (number == NULL || PyTuple_SetItem(dropped, i, number) != 0)
            Py_CLEAR(dropped);
    }
    return dropped == NULL ? NULL
                           : Py_BuildValue("(IIKN)", session->queue_count, session->in_flight,
                                           (unsigned long long)session->delivered, dropped);
}

/* ---- subscription ids ---- */

PyObject *engine_subscription_ids_take(engine_object *self, PyObject *object)
{
    HELD_VIEW identifiers = {0};
    if (view_of(object, &identifiers) != 0)
        return NULL;
    uint32_t number = mq_subscription_ids_take(self->engine, 0, identifiers.bytes,
                                               (uint32_t)identifiers.length);
    return number == 0 ? PyErr_NoMemory() : PyLong_FromUnsignedLong(number);
}

PyObject *engine_subscription_ids_drop(engine_object *self, PyObject *object)
{
    unsigned long long number;
    if (unsigned_of(object, MQ_SUBSCRIPTION_IDS_MAX, &number) != 0)
        return NULL;
    const mq_subscription_ids *ids = number == 0 ? NULL
                                                 : mq_subscription_ids_at(self->engine, (uint32_t)number);
    if (ids == NULL || !(ids->item.generation & 1))
        return PyErr_Format(PyExc_ValueError, "there are no subscription ids %llu", number);
    mq_subscription_ids_drop(self->engine, (uint32_t)number);
    Py_RETURN_NONE;
}

PyObject *engine_subscription_ids_of(engine_object *self, PyObject *object)
{
    unsigned long long number;
    if (unsigned_of(object, MQ_SUBSCRIPTION_IDS_MAX, &number) != 0)
        return NULL;
    const mq_subscription_ids *ids = number == 0 ? NULL
                                                 : mq_subscription_ids_at(self->engine, (uint32_t)number);
    bool is_there = ids != NULL && ids->item.generation & 1;
    return PyBytes_FromStringAndSize(is_there ? (const char *)ids->identifiers : "",
                                     is_there ? (Py_ssize_t)ids->length : 0);
}

PyObject *engine_subscription_ids_count(engine_object *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromUnsignedLong(self->engine->subscription_ids.live);
}

PyObject *engine_next_log_position(engine_object *self, PyObject *handle)
{
    mq_session *session;
    uint64_t where;
    if (session_from(self, handle, &session) != 0)
        return NULL;
    if (session == NULL || !mq_next_log_position(self->engine, session, &where))
        Py_RETURN_NONE;
    return Py_BuildValue("(IK)", mq_where_ring(where), (unsigned long long)mq_where_position(where));
}

PyObject *engine_restore_records(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_session *session;
    unsigned long long ring, wanted, position;
    HELD_VIEW records = {0};
    if (take(count, 5) != 0 || view_of(args[4], &records) != 0 ||
        session_from(self, args[0], &session) != 0 || unsigned_of(args[1], MQ_RINGS_MAX - 1, &ring) != 0 ||
        unsigned_of(args[2], UINT64_MAX, &wanted) != 0 || unsigned_of(args[3], UINT64_MAX, &position) != 0)
        return NULL;
    if (session != NULL)
        mq_restore_records(self->engine, session, mq_where((uint32_t)ring, wanted), position, records.bytes,
                           (uint64_t)records.length);
    return PyBool_FromLong(session != NULL);
}

PyObject *engine_resume_delivery(engine_object *self, PyObject *handle)
{
    mq_session *session;
    if (session_from(self, handle, &session) != 0)
        return NULL;
    if (session != NULL)
        mq_resume_delivery(self->engine, session);
    return PyBool_FromLong(session != NULL);
}

/* ---- topics and routes ---- */

PyObject *engine_topic_add(engine_object *self, args_t args, Py_ssize_t count)
{
    HELD_VIEW name = {0};
    unsigned long long number;
    mq_session *session;
    if (take(count, 5) != 0 || view_of(args[0], &name) != 0 || session_from(self, args[3], &session) != 0 ||
        unsigned_of(args[1], MQ_RINGS_MAX - 1, &number) != 0)
        return NULL;
    mq_owner *owner = session != NULL ? mq_owner_reference(session->owner) : owner_from(self, args[4]);
    if (owner == NULL && PyErr_Occurred())
        return NULL;
    const mq_ring *ring = number < self->engine->ring_count ? self->engine->rings[number] : NULL;
    PyObject *result = NULL;
    if (ring == NULL || ring->kind != MQ_RING_OWN || name.length > RB_KEY_MAX_BYTES) {
        PyErr_Format(PyExc_ValueError, "ring %llu is no ring of this process, or the topic is too long",
                     number);
    } else {
        mq_topic *topic = mq_topic_add(self->engine, name.bytes, (uint32_t)name.length, (uint16_t)number,
                                       args[2] == Py_True);
        if (topic != NULL && owner != NULL && !topic->reserved)
            mq_topic_owned(self->engine, topic, owner);
        result = PyLong_FromUnsignedLong(topic == NULL ? MQ_NO_TOPIC : topic->item.index);
    }
    mq_owner_drop(self->engine, owner);
    return result;
}

PyObject *engine_topic_find(engine_object *self, PyObject *object)
{
    HELD_VIEW name = {0};
    if (view_of(object, &name) != 0)
        return NULL;
    const mq_topic *topic = mq_topic_find(self->engine, name.bytes, (uint32_t)name.length);
    return PyLong_FromUnsignedLong(topic == NULL ? MQ_NO_TOPIC : topic->item.index);
}

PyObject *engine_topic_name(engine_object *self, PyObject *index)
{
    mq_topic *topic;
    return topic_from(self, index, &topic) != 0
               ? NULL
               : PyBytes_FromStringAndSize((const char *)topic->name, topic->length);
}

PyObject *engine_topic_ring(engine_object *self, PyObject *index)
{
    mq_topic *topic;
    return topic_from(self, index, &topic) != 0 ? NULL : PyLong_FromLong(topic->ring);
}

PyObject *engine_topics_move(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long first, places;
    uint32_t moved = 0;
    if (take(count, 2) != 0 || unsigned_of(args[0], UINT32_MAX, &first) != 0 ||
        unsigned_of(args[1], UINT32_MAX, &places) != 0)
        return NULL;
    uint32_t next = mq_topics_move(self->engine, (uint32_t)first, (uint32_t)places, &moved);
    return next < self->engine->topics.created ? Py_BuildValue("(II)", moved, next)
                                               : Py_BuildValue("(IO)", moved, Py_None);
}

static bool topic_matches(const mq_topic *topic, const bytes_view *filter)
{
    return topic != NULL && topic->item.generation & 1 &&
           mq_filter_matches(filter->bytes, (uint32_t)filter->length,
                                                           (const char *)topic->name, topic->length);
}

PyObject *engine_topics_scan(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long first, places, most;
    HELD_VIEW filter = {0};
    if (take(count, 4) != 0 || view_of(args[0], &filter) != 0 ||
        unsigned_of(args[1], UINT32_MAX, &first) != 0 ||
        unsigned_of(args[2], UINT32_MAX, &places) != 0 || unsigned_of(args[3], UINT32_MAX, &most) != 0)
        return NULL;
    uint32_t topic_slots = self->engine->topics.created, found = 0,
             at = first < topic_slots ? (uint32_t)first : topic_slots,
             end = places < topic_slots - at ? at + (uint32_t)places : topic_slots,
             capacity = most < end - at ? (uint32_t)most : end - at;
    uint32_t *topics = malloc((capacity + 1) * sizeof *topics);
    if (topics == NULL)
        return PyErr_NoMemory();
    for (; at < end && found < capacity; at++)
        if (topic_matches(mq_slab_at(&self->engine->topics, at), &filter))
            topics[found++] = at;
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)topics, found * (Py_ssize_t)sizeof *topics);
    free(topics);
    if (bytes == NULL)
        return NULL;
    return at < topic_slots ? Py_BuildValue("(NI)", bytes, at) : Py_BuildValue("(NO)", bytes, Py_None);
}

PyObject *engine_topics(engine_object *self, PyObject *Py_UNUSED(ignored))
{
    uint32_t count = 0, *found = malloc((self->engine->topics.live + 1) * sizeof *found);
    if (found == NULL)
        return PyErr_NoMemory();
    for (uint32_t i = 0; i < self->engine->topics.created; i++) {
        const mq_topic *topic = mq_slab_at(&self->engine->topics, i);
        if (topic->item.generation & 1)
            found[count++] = i;
    }
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)found, count * (Py_ssize_t)sizeof *found);
    free(found);
    return bytes;
}

static void topic_forget(mq_engine *engine, mq_topic *topic)
{
    mq_topic_free(engine, topic);
    engine->counters.topics_recycled++;
}

static unsigned long long topics_recycle(mq_engine *engine, unsigned long long limit, bool spare_produced)
{
    unsigned long long forgotten = 0;
    for (mq_topic *topic;
         forgotten < limit && (topic = mq_topic_recyclable(engine, spare_produced)) != NULL; forgotten++)
        topic_forget(engine, topic);
    return forgotten;
}

PyObject *engine_topics_recycle(engine_object *self, PyObject *most)
{
    unsigned long long limit, forgotten;
    if (unsigned_of(most, UINT32_MAX, &limit) != 0)
        return NULL;
    forgotten = topics_recycle(self->engine, limit, true);
    if (forgotten == 0) /* producers alone must not keep the table full */
        forgotten = topics_recycle(self->engine, limit, false);
    return PyLong_FromUnsignedLongLong(forgotten);
}

PyObject *engine_topics_age(engine_object *self, PyObject *places)
{
    mq_engine *engine = self->engine;
    unsigned long long limit, forgotten = 0;
    if (unsigned_of(places, UINT32_MAX, &limit) != 0)
        return NULL;
    uint32_t hand = engine->clock_hand,
             steps = limit < engine->topics.created ? (uint32_t)limit : engine->topics.created;
    for (mq_topic *topic; (topic = mq_topic_idle(engine, &steps)) != NULL; forgotten++)
        topic_forget(engine, topic);
    if (limit > 0 && engine->clock_hand <= hand) /* one full round */
        mq_slab_trim(&engine->topics);
    return PyLong_FromUnsignedLongLong(forgotten);
}

/* Call `act` for each topic of `ids`, uint32 each.  Returns the number of calls that returned true. */
static Py_ssize_t each_topic(engine_object *self, const bytes_view *ids, mq_session *session,
                             uint32_t options, bool (*act)(mq_engine *, mq_topic *, mq_session *, uint32_t))
{
    Py_ssize_t yes = 0;
    for (Py_ssize_t i = 0; i + 4 <= ids->length; i += 4) {
        uint32_t index;
        memcpy(&index, (const char *)ids->bytes + i, sizeof index);
        mq_topic *topic = mq_slab_at(&self->engine->topics, index);
        if (topic != NULL && topic->item.generation & 1)
            yes += act(self->engine, topic, session, options);
    }
    return yes;
}

static bool act_set(mq_engine *engine, mq_topic *topic, mq_session *session, uint32_t options)
{
    return mq_route_set(engine, topic, session, options);
}

static bool act_add(mq_engine *engine, mq_topic *topic, mq_session *session, uint32_t options)
{
    return mq_route_add(engine, topic, session, options);
}

static bool act_merge(mq_engine *engine, mq_topic *topic, mq_session *session, uint32_t options)
{
    return mq_route_merge(engine, topic, session, options);
}

static bool act_drop(mq_engine *engine, mq_topic *topic, mq_session *session, uint32_t options)
{
    (void)options;
    mq_route_drop(engine, topic, session);
    return true;
}

static PyObject *over_topics(engine_object *self, args_t args, Py_ssize_t count,
                             bool (*act)(mq_engine *, mq_topic *, mq_session *, uint32_t))
{
    mq_session *session;
    unsigned long long options;
    HELD_VIEW ids = {0};
    if (take(count, 3) != 0 || view_of(args[0], &ids) != 0 || session_from(self, args[1], &session) != 0 ||
        unsigned_of(args[2], UINT32_MAX, &options) != 0)
        return NULL;
    return PyLong_FromSsize_t(session == NULL ? 0 : each_topic(self, &ids, session, (uint32_t)options, act));
}

PyObject *engine_routes_set(engine_object *self, args_t args, Py_ssize_t count)
{
    return over_topics(self, args, count, act_set);
}

PyObject *engine_routes_add(engine_object *self, args_t args, Py_ssize_t count)
{
    return over_topics(self, args, count, act_add);
}

PyObject *engine_routes_merge(engine_object *self, args_t args, Py_ssize_t count)
{
    return over_topics(self, args, count, act_merge);
}

PyObject *engine_routes_drop(engine_object *self, args_t args, Py_ssize_t count)
{
    return over_topics(self, args, count, act_drop);
}

PyObject *engine_routes_clear(engine_object *self, PyObject *index)
{
    mq_topic *topic;
    if (topic_from(self, index, &topic) != 0)
        return NULL;
    mq_routes_free(self->engine, topic);
    Py_RETURN_NONE;
}

PyObject *engine_routes_of(engine_object *self, PyObject *index)
{
    mq_topic *topic;
    if (topic_from(self, index, &topic) != 0)
        return NULL;
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < topic->route_count; i++) {
        const mq_route *route = &topic->routes[i];
        if (route->session->item.generation != route->generation)
            continue;
        PyObject *pair = Py_BuildValue("(KI)", (unsigned long long)mq_handle(&route->session->item),
                                       route->options);
        if (pair == NULL || PyList_Append(list, pair) != 0)
            Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

#define MESSAGE_FLAGS (RB_FLAG_QOS | RB_FLAG_RETAIN | RB_FLAG_EXPIRY)

/* Build a message.  `properties` have the form of a record, or are empty. */
static mq_message message_of(const bytes_view *payload, const bytes_view *properties, uint32_t flags,
                             uint64_t timestamp_ns)
{
    return (mq_message){.payload = payload->bytes,
                        .payload_length = (uint32_t)payload->length,
                        .properties = properties->bytes,
                        .properties_length = (uint32_t)properties->length,
                        .flags = flags | (properties->length > 0 ? RB_FLAG_PROPERTIES : 0),
                        .timestamp_ns = timestamp_ns};
}

/* Set owner and author of a message, with a reference to each.  0, or -1 with an exception. */
static int message_by(engine_object *self, mq_message *message, PyObject *owner, PyObject *author)
{
    message->owner = owner_from(self, owner);
    if (message->owner == NULL && PyErr_Occurred())
        return -1;
    message->author = author_from(message->owner, author);
    if (message->author == NULL && PyErr_Occurred()) {
        mq_owner_drop(self->engine, message->owner);
        return -1;
    }
    return 0;
}

PyObject *engine_publish(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_topic *topic;
    HELD_VIEW payload = {0}, properties = {0};
    unsigned long long flags, publisher;
    uint64_t end;
    if (take(count, 7) != 0 || view_of(args[1], &payload) != 0 || view_of(args[3], &properties) != 0 ||
        topic_from(self, args[0], &topic) != 0 || unsigned_of(args[2], MESSAGE_FLAGS, &flags) != 0 ||
        unsigned_of(args[6], UINT64_MAX, &publisher) != 0)
        return NULL;
    mq_message message = message_of(&payload, &properties, (uint32_t)flags, 0);
    message.publisher = mq_slab_get(&self->engine->sessions, publisher);
    if (message_by(self, &message, args[4], args[5]) != 0)
        return NULL;
    int result = mq_append(self->engine, topic, &message, &end);
    mq_owner_drop(self->engine, message.owner);
    mq_author_drop(self->engine, message.author);
    if (result == RB_TIMEOUT)
        self->engine->counters.dropped[MQ_DROP_FULL]++;
    if (result == RB_TOO_LARGE)
        self->engine->counters.dropped[MQ_DROP_TOO_LARGE]++;
    return PyLong_FromLong(result);
}

/* Restore a retained message that a ring still has, after a restart, without a new record. */
PyObject *engine_retain(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_topic *topic;
    HELD_VIEW payload = {0}, properties = {0};
    unsigned long long flags, timestamp_ns;
    if (take(count, 7) != 0 || view_of(args[1], &payload) != 0 || view_of(args[3], &properties) != 0 ||
        topic_from(self, args[0], &topic) != 0 || unsigned_of(args[2], MESSAGE_FLAGS, &flags) != 0 ||
        unsigned_of(args[4], UINT64_MAX, &timestamp_ns) != 0)
        return NULL;
    mq_message message = message_of(&payload, &properties, (uint32_t)flags, timestamp_ns);
    if (message_by(self, &message, args[5], args[6]) != 0)
        return NULL;
    if (topic->reserved || self->engine->limits.retained_max > 0)
        mq_retain(self->engine, topic, &message, 0);
    mq_owner_drop(self->engine, message.owner);
    mq_author_drop(self->engine, message.author);
    return PyBool_FromLong(topic->retained != NULL);
}

PyObject *engine_retained_message(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_topic *topic;
    unsigned long long payload_max;
    rb_parts parts;
    if (take(count, 2) != 0 || topic_from(self, args[0], &topic) != 0 ||
        unsigned_of(args[1], UINT32_MAX, &payload_max) != 0)
        return NULL;
    const mq_blob *blob = topic->retained;
    const uint8_t *bytes = blob == NULL ? NULL : (const uint8_t *)&blob->record;
    if (blob == NULL || rb_record_parts(&blob->record, bytes, blob->record.length, &parts) != RB_OK)
        Py_RETURN_NONE;
    uint32_t shown = parts.payload_length < payload_max ? parts.payload_length : (uint32_t)payload_max;
    return Py_BuildValue("(IKy#Iy#O)", (unsigned)blob->record.flags,
                         (unsigned long long)blob->record.timestamp_ns,
                         (const char *)bytes + parts.properties_position, (Py_ssize_t)parts.properties_length,
                         parts.payload_length, (const char *)bytes + parts.payload_position,
                         (Py_ssize_t)shown, blob->withheld ? Py_True : Py_False);
}

/* Route the retained message of a topic to the current subscribers, as a new message. */
PyObject *engine_retained_route(engine_object *self, PyObject *index)
{
    mq_topic *topic;
    if (topic_from(self, index, &topic) != 0)
        return NULL;
    if (topic->retained == NULL)
        return PyLong_FromLong(0);
    mq_message message = {.flags = topic->retained->record.flags};
    uint64_t where = (uint64_t)(uintptr_t)topic->retained;
    return PyLong_FromUnsignedLong(mq_route_record(self->engine, topic, where, &message));
}
