/* SPDX-License-Identifier: Apache-2.0
 *
 * Method of the Python type Engine that restores retained messages after a restart (see py_engine.c).
 */
#include "python/py_engine.h"

#include <string.h>

/* Records of a save and their authors, and the places in both (edge/recovery/retained_store.py). */
typedef struct input {
    bytes_view records, authors;
    uint64_t at, authors_at;
    PyObject *owners;  /* dict: author -> key of its owner */
    mq_author *author; /* the last one, with a reference */
} input;

/* Author of the next record with this name, and the length of its entry; 0: the record has no author. */
static uint32_t next_author(const input *in, const uint8_t *name, uint32_t length, bytes_view *author)
{
    uint64_t left = (uint64_t)in->authors.length - in->authors_at;
    const uint8_t *entry = (const uint8_t *)in->authors.bytes + in->authors_at;
    uint32_t lengths[2];
    *author = (bytes_view){0};
    if (left < sizeof lengths)
        return 0;
    memcpy(lengths, entry, sizeof lengths);
    uint64_t bytes = sizeof lengths + (uint64_t)lengths[0] + lengths[1];
    if (bytes > left || lengths[0] != length || memcmp(entry + sizeof lengths, name, length) != 0)
        return 0;
    author->bytes = entry + sizeof lengths + length;
    author->length = lengths[1];
    return (uint32_t)bytes;
}

/* Make `author` the last one.  1: done; 0: its owner is not known; -1: exception. */
static int take_author(engine_object *self, input *in, const bytes_view *author)
{
    mq_author *last = in->author;
    if (author->length == 0 || (last != NULL && last->length == (uint32_t)author->length &&
                                memcmp(last->bytes, author->bytes, last->length) == 0))
        return 1;
    PyObject *text = PyBytes_FromStringAndSize((const char *)author->bytes, author->length);
    PyObject *key = text == NULL ? NULL : PyDict_GetItemWithError(in->owners, text);
    Py_XDECREF(text);
    if (key == NULL)
        return PyErr_Occurred() ? -1 : 0;
    mq_owner *owner = owner_from(self, key);
    if (owner == NULL && PyErr_Occurred())
        return -1;
    mq_author_drop(self->engine, last);
    in->author = mq_author_new(owner, author->bytes, (uint32_t)author->length);
    mq_owner_drop(self->engine, owner);
    return in->author != NULL; /* without memory, Python raises the exception */
}

/* Restore one record.  1: done; 0: Python must decide; -1: exception. */
static int restore(engine_object *self, input *in, const rb_record *record, const rb_parts *parts,
                   const uint8_t *bytes)
{
    const uint8_t *name = bytes + RB_RECORD_HEADER_BYTES;
    bytes_view author = {0};
    uint32_t author_bytes = 0; /* of its entry */
    mq_topic *topic = mq_topic_find(self->engine, name, record->key_length);
    if (parts->payload_length > 0) { /* otherwise the topic is cleared, and has no author */
        author_bytes = next_author(in, name, record->key_length, &author);
        if (topic == NULL && (topic = mq_topic_restored(self->engine, name, record->key_length)) == NULL)
            return 0;
    }
    int known = take_author(self, in, &author);
    if (known <= 0 || (topic != NULL && (topic->reserved || (author.length == 0 && topic->tenant != 0))))
        return known < 0 ? -1 : 0;
    uint32_t qos = record->flags & RB_FLAG_QOS;
    mq_message message = {.payload = bytes + parts->payload_position,
                          .payload_length = parts->payload_length,
                          .properties = bytes + parts->properties_position,
                          .properties_length = parts->properties_length,
                          .flags = (qos < 2 ? qos : 2) | (record->flags & RB_FLAG_EXPIRY) |
                                   (parts->properties_length > 0 ? RB_FLAG_PROPERTIES : 0),
                          .timestamp_ns = record->timestamp_ns,
                          .author = author.length > 0 ? in->author : NULL};
    if (topic != NULL && self->engine->limits.retained_max > 0)
        mq_retain(self->engine, topic, &message, 0);
    in->authors_at += author_bytes;
    return 1;
}

PyObject *engine_restore_retained(engine_object *self, args_t args, Py_ssize_t count)
{
    HELD_VIEW records = {0}, authors = {0};
    unsigned long long at, authors_at;
    if (take(count, 5) != 0 || view_of(args[0], &records) != 0 || view_of(args[1], &authors) != 0 ||
        unsigned_of(args[3], (unsigned long long)records.length, &at) != 0 ||
        unsigned_of(args[4], (unsigned long long)authors.length, &authors_at) != 0)
        return NULL;
    if (!PyDict_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "owners must be a dict");
    input in = {records, authors, at, authors_at, args[2], NULL};
    int result = 1;
    while (result > 0) {
        rb_record record;
        rb_parts parts;
        uint64_t bad_length, left = (uint64_t)records.length - in.at;
        const uint8_t *bytes = (const uint8_t *)records.bytes + in.at;
        uint64_t span = rb_record_at(bytes, left, &record, &parts, &bad_length);
        if (span == 0)
            in.at = (uint64_t)records.length;
        if (span == 0 || ((record.flags & RB_FLAG_RETAIN) &&
                          (result = restore(self, &in, &record, &parts, bytes)) <= 0))
            break;
        in.at += span;
    }
    mq_author_drop(self->engine, in.author);
    return result < 0 ? NULL
                      : Py_BuildValue("(KK)", (unsigned long long)in.at, (unsigned long long)in.authors_at);
}
