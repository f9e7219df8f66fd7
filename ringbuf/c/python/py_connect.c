/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of the Python type Engine for a CONNECT (see py_engine.c): its contents, the peer that sent it, and
 * the rules for what that client may publish.
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
