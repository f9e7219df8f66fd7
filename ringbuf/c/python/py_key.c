/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments `key` and `properties` of a Writer: checked, and hashed once per key object.
 */
#include "python/py_ring.h"

#include <string.h>

/* True if `bytes` is one Variable Byte Integer followed by exactly as many bytes as it gives.  Otherwise
 * readers would expect the payload at another position. */
static bool properties_whole(const uint8_t *bytes, Py_ssize_t length)
{
    uint64_t value = 0;
    for (Py_ssize_t i = 0; i < 4 && i < length; i++) {
        value |= (uint64_t)(bytes[i] & 0x7f) << 7 * i;
        if (!(bytes[i] & 0x80))
            return value == (uint64_t)(length - i - 1);
    }
    return false;
}

static int properties_take(PyObject *properties, rb_key *out)
{
    bytes_view view;
    if (!PyBytes_CheckExact(properties)) {
        PyErr_SetString(PyExc_TypeError,
                        "properties must be bytes, in MQTT 5 wire form with their length in front");
        return -1;
    }
    if (bytes_of(properties, &view) != 0)
        return -1;
    if (view.length > 0 && !properties_whole(view.bytes, view.length)) {
        PyErr_Format(PyExc_ValueError, "properties of %zd bytes do not begin with the length of the rest",
                     view.length);
        return -1;
    }
    out->properties = view.bytes;
    out->properties_length = (uint32_t)view.length;
    return 0;
}

static int invalid_topic(const bytes_view *view, const char *why)
{
    PyObject *shown = PyBytes_FromStringAndSize(view->bytes, view->length);
    if (shown != NULL)
        fail("InvalidTopic", "(Os)", shown, why);
    Py_XDECREF(shown);
    return -1;
}

/* Returns 0 if `view` is a valid topic name of a PUBLISH [MQTT-4.7.1-1, 4.7.3-1, 4.7.3-2], otherwise -1 with
 * an exception.  RB_KEY_MAX_BYTES bounds its length. */
static int topic_check(PyObject *key, const bytes_view *view)
{
    size_t length = (size_t)view->length;
    const char *why = NULL;
    if (length == 0)
        why = "a topic has at least one character; give key=";
    else if (memchr(view->bytes, '+', length) != NULL || memchr(view->bytes, '#', length) != NULL)
        why = "+ and # are wildcards of filters; publish to one topic";
    else if (memchr(view->bytes, 0, length) != NULL)
        why = "a topic has no U+0000; remove it";
    if (why != NULL)
        return invalid_topic(view, why);
    if (PyUnicode_Check(key))
        return 0;
    PyObject *text = PyUnicode_DecodeUTF8(view->bytes, view->length, NULL);
    if (text == NULL) {
        PyErr_Clear();
        return invalid_topic(view, "a topic is UTF-8; encode it so");
    }
    Py_DECREF(text);
    return 0;
}

int key_take_new(writer_object *self, PyObject *key, PyObject *properties, rb_key *out)
{
    if (key != self->last_key || (key == NULL && self->topics)) {
        bytes_view view = {.bytes = "", .length = 0};
        self->last = (rb_key){.bytes = ""};
        Py_CLEAR(self->last_key);
        if (key != NULL && !PyBytes_CheckExact(key) && !PyUnicode_Check(key)) {
            PyErr_Format(PyExc_TypeError, "key must be bytes or str, not %R", (PyObject *)Py_TYPE(key));
            return -1;
        }
        if (key != NULL && bytes_of(key, &view) != 0)
            return -1;
        if (view.length > RB_KEY_MAX_BYTES) {
            fail("KeyTooLong", "(nn)", view.length, (Py_ssize_t)RB_KEY_MAX_BYTES);
            return -1;
        }
        if (self->topics && topic_check(key, &view) != 0)
            return -1;
        self->last = (rb_key){.bytes = view.bytes, .length = (uint32_t)view.length,
                              .hash = rb_crc32c(0, view.bytes, (size_t)view.length)};
        self->last_key = Py_XNewRef(key);
    }
    *out = self->last;
    return properties == NULL || properties == Py_None ? 0 : properties_take(properties, out);
}
