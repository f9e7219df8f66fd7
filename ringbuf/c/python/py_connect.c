/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of the Python type Engine for a CONNECT (see py_engine.c): its contents, the peer that sent it, its
 * acceptance, and the rules for what that client may publish.
 */
#include "mqtt/in/acl_rules.h"
#include "mqtt/in/connect.h"
#include "mqtt/peer.h"
#include "python/py_engine.h"

#include <stdlib.h>

static PyObject *text_of(const mq_text *text)
{
    if (text->at == NULL)
        Py_RETURN_NONE;
    return PyUnicode_FromStringAndSize((const char *)text->at, text->length);
}

static PyObject *binary_of(const mq_text *text)
{
    if (text->at == NULL)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)text->at, text->length);
}

static PyObject *will_of(const mq_connect *connect)
{
    if (!(connect->flags & MQ_CONNECT_WILL))
        Py_RETURN_NONE;
    return Py_BuildValue("(NNiN)", text_of(&connect->will_topic), binary_of(&connect->will_payload),
                         connect->flags >> 3 & 3,
                         PyBool_FromLong(connect->flags & MQ_CONNECT_WILL_RETAIN));
}

static PyObject *properties_of(const mq_connect *connect)
{
    if (connect->present == 0)
        Py_RETURN_NONE;
    PyObject *values = PyTuple_New(MQ_CONNECT_PROPERTIES);
    for (uint32_t i = 0; values != NULL && i < MQ_CONNECT_PROPERTIES; i++) {
        PyObject *value = connect->present & 1u << i ? PyLong_FromUnsignedLong(connect->properties[i])
                                                     : Py_NewRef(Py_None);
        if (value == NULL || PyTuple_SetItem(values, (Py_ssize_t)i, value) != 0)
            Py_CLEAR(values);
    }
    return values;
}

PyObject *engine_plain_connect(engine_object *Py_UNUSED(self), PyObject *packet)
{
    char *bytes;
    Py_ssize_t length;
    mq_connect connect;
    if (PyBytes_AsStringAndSize(packet, &bytes, &length) != 0)
        return NULL;
    if (!mq_connect_decode((const uint8_t *)bytes, (uint32_t)length, &connect))
        Py_RETURN_NONE;
    return Py_BuildValue("(NNiNNNiN)", text_of(&connect.client_id),
                         PyBool_FromLong(connect.flags & MQ_CONNECT_CLEAN), connect.keep_alive_s,
                         text_of(&connect.username), binary_of(&connect.password), will_of(&connect),
                         connect.version, properties_of(&connect));
}

PyObject *engine_peer(engine_object *self, PyObject *handle)
{
    char text[MQ_PEER_BYTES];
    mq_connection *connection;
    if (connection_from(self, handle, &connection) != 0)
        return NULL;
    if (connection == NULL)
        Py_RETURN_NONE;
    mq_peer_text(connection, text);
    return Py_BuildValue("(is)", connection->listener, text);
}

PyObject *engine_accept(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_connection *connection;
    mq_session *session;
    HELD_VIEW answer = {0};
    unsigned long long version, idle_max_ms, window, send_max_bytes, alias_max, tenant;
    if (take(count, 12) != 0 || view_of(args[2], &answer) != 0 ||
        live_from(self, args[0], &connection) != 0 || session_from(self, args[1], &session) != 0 ||
        unsigned_of(args[4], 5, &version) != 0 || unsigned_of(args[5], UINT64_MAX, &idle_max_ms) != 0 ||
        unsigned_of(args[8], 65535, &window) != 0 || unsigned_of(args[9], UINT32_MAX, &send_max_bytes) != 0 ||
        unsigned_of(args[10], 65535, &alias_max) != 0 ||
        unsigned_of(args[11], self->engine->tenant_count, &tenant) != 0)
        return NULL;
    if (connection == NULL || session == NULL || session->connection != NULL || connection->version != 0)
        Py_RETURN_FALSE;
    if (args[3] == Py_True) {
        mq_output_barrier(self->engine, connection);
        connection->unconfirmed = connection->needs_barrier;
    }
    if (!mq_write_output(self->engine, connection, answer.bytes, (uint32_t)answer.length))
        Py_RETURN_FALSE;
    session->receives_all = args[7] == Py_True;
    mq_connection_settings settings = {.idle_max_ms = idle_max_ms,
                                       .window = window > 0 ? (uint32_t)window : 1,
                                       .send_max_bytes = (uint32_t)send_max_bytes,
                                       .alias_max = (uint32_t)alias_max,
                                       .version = (uint8_t)version,
                                       .trusted = args[6] == Py_True,
                                       .tenant = mq_tenant_numbered(self->engine, (uint32_t)tenant)};
    mq_connection_attach(self->engine, connection, session, &settings);
    Py_RETURN_TRUE;
}

PyObject *engine_drop_unconfirmed(engine_object *self, PyObject *handle)
{
    mq_connection *connection;
    if (live_from(self, handle, &connection) != 0)
        return NULL;
    return PyBool_FromLong(connection != NULL && mq_drop_unconfirmed(connection));
}

/* Open a session for the client of `connection`: one that ends with it.  NULL: an exception is set. */
static mq_session *new_session(engine_object *self, mq_connection *connection, PyObject *facts)
{
    mq_session *session = mq_slab_take(&self->engine->sessions);
    if (session == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    session->author = author_from(connection->owner, facts);
    if (session->author == NULL && PyErr_Occurred()) {
        mq_slab_give(&self->engine->sessions, &session->item);
        return NULL;
    }
    mq_session_owned(self->engine, session, mq_owner_reference(connection->owner));
    session->receives_all = true;
    return session;
}

PyObject *engine_accept_new(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_connection *connection;
    mq_session *session;
    HELD_VIEW answer = {0};
    unsigned long long version, idle_max_ms, window, queue_max;
    if (take(count, 8) != 0 || view_of(args[1], &answer) != 0 || unsigned_of(args[3], 5, &version) != 0 ||
        unsigned_of(args[4], UINT64_MAX, &idle_max_ms) != 0 || unsigned_of(args[5], 65535, &window) != 0 ||
        unsigned_of(args[6], 1u << 30, &queue_max) != 0 || live_from(self, args[0], &connection) != 0)
        return NULL;
    if (connection == NULL || connection->version != 0 ||
        !mq_owner_has_place(self->engine, connection->owner))
        return PyLong_FromLong(0);
    if ((session = new_session(self, connection, args[2])) == NULL)
        return NULL;
    if (!mq_write_output(self->engine, connection, answer.bytes, (uint32_t)answer.length)) {
        mq_session_clear(self->engine, session);
        mq_slab_give(&self->engine->sessions, &session->item);
        return PyLong_FromLong(0);
    }
    session->queue_max = (uint32_t)queue_max;
    session->drop_newest = args[7] == Py_True;
    mq_connection_settings settings = {.idle_max_ms = idle_max_ms,
                                       .window = window > 0 ? (uint32_t)window : 1,
                                       .version = (uint8_t)version,
                                       .trusted = true};
    mq_connection_attach(self->engine, connection, session, &settings);
    return PyLong_FromUnsignedLongLong(mq_handle(&session->item));
}

PyObject *engine_publish_rules(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_connection *connection;
    char *packed;
    Py_ssize_t length;
    mq_acl_rules *rules = NULL;
    if (take(count, 2) != 0 || live_from(self, args[0], &connection) != 0)
        return NULL;
    if (args[1] != Py_None) {
        if (PyBytes_AsStringAndSize(args[1], &packed, &length) != 0)
            return NULL;
        if ((rules = mq_acl_rules_new((const uint8_t *)packed, (uint32_t)length)) == NULL)
            return PyErr_Format(PyExc_ValueError, "the rules are malformed, or there is no memory for them");
    }
    if (connection == NULL)
        free(rules);
    else
        mq_acl_rules_set(self->engine, connection, rules);
    return PyBool_FromLong(connection != NULL);
}
