/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of the Python type Engine for owners (see py_engine.c).  A key is bytes; b"" means no owner.
 */
#include "python/py_engine.h"

#define TOP_MAX 64
#define PLACES_MAX 4096u /* places of the topic table checked in one call */

mq_owner *owner_from(engine_object *self, PyObject *key)
{
    char *bytes; /* from a bytes object, so no Python code runs */
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(key, &bytes, &length) != 0)
        return NULL;
    return mq_owner_take(self->engine, bytes, (uint32_t)length);
}

mq_author *author_from(mq_owner *owner, PyObject *facts)
{
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(facts, &bytes, &length) != 0)
        return NULL;
    return mq_author_new(owner, bytes, (uint32_t)length);
}

int session_client(engine_object *self, mq_session *session, args_t args)
{
    mq_owner *owner = owner_from(self, args[0]);
    if (owner == NULL && PyErr_Occurred())
        return -1;
    mq_author *author = author_from(owner, args[1]);
    if (author == NULL && PyErr_Occurred()) {
        mq_owner_drop(self->engine, owner);
        return -1;
    }
    mq_session_owned(self->engine, session, owner);
    mq_author_drop(self->engine, session->author);
    session->author = author;
    mq_session_lasts(self->engine, session, args[2] == Py_True);
    return 0;
}

PyObject *engine_session_client(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_session *session;
    if (take(count, 4) != 0 || session_from(self, args[0], &session) != 0 ||
        (session != NULL && session_client(self, session, args + 1) != 0))
        return NULL;
    return PyBool_FromLong(session != NULL);
}

PyObject *engine_retained_authors(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long from, most;
    if (take(count, 2) != 0 || unsigned_of(args[0], UINT32_MAX, &from) != 0 ||
        unsigned_of(args[1], UINT32_MAX, &most) != 0)
        return NULL;
    uint32_t at = (uint32_t)from < self->engine->topics.created ? (uint32_t)from
                                                                : self->engine->topics.created,
             end = self->engine->topics.created - at < PLACES_MAX ? self->engine->topics.created
                                                                  : at + PLACES_MAX;
    PyObject *rows = PyList_New(0);
    while (rows != NULL && at < end && PyList_Size(rows) < (Py_ssize_t)most) {
        mq_author *author;
        at = mq_retained_author_next(self->engine, at, end - at, &author);
        if (author == NULL)
            break;
        PyObject *row = Py_BuildValue("(Iy#)", at++, (const char *)author->bytes, (Py_ssize_t)author->length);
        if (row == NULL || PyList_Append(rows, row) != 0)
            Py_CLEAR(rows);
        Py_XDECREF(row);
    }
    if (rows == NULL)
        return NULL;
    return at < self->engine->topics.created ? Py_BuildValue("(NI)", rows, at)
                                             : Py_BuildValue("(NO)", rows, Py_None);
}

PyObject *engine_retained_withhold(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_topic *topic;
    char *facts;
    Py_ssize_t length;
    if (take(count, 3) != 0 || topic_from(self, args[0], &topic) != 0 ||
        PyBytes_AsStringAndSize(args[1], &facts, &length) != 0)
        return NULL;
    const mq_author *author = topic->retained != NULL ? topic->retained->author : NULL;
    bool same = author != NULL && author->length == (size_t)length &&
                memcmp(author->bytes, facts, (size_t)length) == 0;
    if (same)
        topic->retained->withheld = args[2] == Py_True;
    return PyBool_FromLong(same);
}

PyObject *engine_session_filters(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_session *session;
    unsigned long long bytes;
    if (take(count, 2) != 0 || session_from(self, args[0], &session) != 0 ||
        unsigned_of(args[1], UINT32_MAX, &bytes) != 0)
        return NULL;
    if (session != NULL)
        mq_session_filters(self->engine, session, bytes);
    return PyBool_FromLong(session != NULL);
}

/* Read the table and the amount from the arguments after the owner. */
static int more_from(args_t args, Py_ssize_t count, uint32_t *table, unsigned long long *more)
{
    unsigned long long number;
    if (take(count, 3) != 0 || unsigned_of(args[1], MQ_OWNED - 1, &number) != 0 ||
        unsigned_of(args[2], UINT32_MAX, more) != 0)
        return -1;
    *table = (uint32_t)number;
    return 0;
}

PyObject *engine_session_may(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_session *session;
    uint32_t table;
    unsigned long long more;
    if (more_from(args, count, &table, &more) != 0 || session_from(self, args[0], &session) != 0)
        return NULL;
    return PyBool_FromLong(session == NULL || mq_owner_may(self->engine, session->owner, table, more));
}

PyObject *engine_session_has_room(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_session *session;
    uint32_t table;
    unsigned long long more;
    if (more_from(args, count, &table, &more) != 0 || session_from(self, args[0], &session) != 0)
        return NULL;
    return PyBool_FromLong(session == NULL || mq_owner_has_quota(self->engine, session->owner, table, more));
}

PyObject *engine_owner_may(engine_object *self, args_t args, Py_ssize_t count)
{
    uint32_t table;
    unsigned long long more;
    mq_owner *owner = NULL;
    if (more_from(args, count, &table, &more) != 0 ||
        ((owner = owner_from(self, args[0])) == NULL && PyErr_Occurred()))
        return NULL;
    bool may = table == MQ_OWNED_CONNECTIONS ? mq_owner_may_attach(self->engine, owner, table)
                                             : mq_owner_may(self->engine, owner, table, more);
    mq_owner_drop(self->engine, owner);
    return PyBool_FromLong(may);
}

PyObject *engine_owner_may_inherit(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long table;
    mq_owner *owner = NULL;
    if (take(count, 2) != 0 || unsigned_of(args[1], MQ_OWNED - 1, &table) != 0 ||
        ((owner = owner_from(self, args[0])) == NULL && PyErr_Occurred()))
        return NULL;
    bool may = mq_owner_may_inherit(self->engine, owner, (uint32_t)table);
    mq_owner_drop(self->engine, owner);
    return PyBool_FromLong(may);
}

static PyObject *key_of(const mq_owner *owner)
{
    return PyBytes_FromStringAndSize((const char *)owner->key, (Py_ssize_t)owner->length);
}

PyObject *engine_owner_refused(engine_object *self, PyObject *object)
{
    unsigned long long table;
    if (unsigned_of(object, MQ_OWNED - 1, &table) != 0)
        return NULL;
    const mq_owner *owner = mq_slab_get(&self->engine->owners, self->engine->quota_refused_to[table]);
    if (owner == NULL)
        Py_RETURN_NONE;
    bool is_of_tenant = table >= MQ_OWNED_DELAYED && owner->tenant != NULL;
    uint64_t has = is_of_tenant ? owner->tenant->used[table] : owner->used[table];
    return Py_BuildValue("(NK)", key_of(owner), (unsigned long long)has);
}

/* Insert `owner` in the `capacity` top places, largest use first.  Returns the number of places in use. */
static int rank(const mq_owner *top[], int ranked, int capacity, const mq_owner *owner, uint32_t table)
{
    int at = ranked < capacity ? ranked++ : capacity;
    while (at > 0 && top[at - 1]->used[table] < owner->used[table]) {
        if (at < capacity)
            top[at] = top[at - 1];
        at--;
    }
    if (at < capacity)
        top[at] = owner;
    return ranked;
}

PyObject *engine_owners_top(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long table, capacity;
    if (take(count, 2) != 0 || unsigned_of(args[0], MQ_OWNED - 1, &table) != 0 ||
        unsigned_of(args[1], TOP_MAX, &capacity) != 0)
        return NULL;
    const mq_owner *top[TOP_MAX + 1];
    int ranked = 0;
    for (uint32_t i = 0; i < self->engine->owners.created; i++) {
        const mq_owner *owner = mq_slab_at(&self->engine->owners, i);
        if (owner->item.generation & 1 && owner->used[table] > 0)
            ranked = rank(top, ranked, (int)capacity, owner, (uint32_t)table);
    }
    PyObject *rows = PyList_New(0);
    for (int i = 0; rows != NULL && i < ranked; i++) {
        PyObject *row = Py_BuildValue("(NK)", key_of(top[i]), (unsigned long long)top[i]->used[table]);
        if (row == NULL || PyList_Append(rows, row) != 0)
            Py_CLEAR(rows);
        Py_XDECREF(row);
    }
    return rows;
}
