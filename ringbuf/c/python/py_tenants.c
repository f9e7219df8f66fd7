/* SPDX-License-Identifier: Apache-2.0
 *
 * Methods of the Python type Engine for tenants (see py_engine.c).
 */
#include "python/py_engine.h"

/* Read a tuple with one limit for each table. */
static int limits_from(PyObject *tuple, uint64_t *max)
{
    unsigned long long limit;
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != MQ_OWNED) {
        PyErr_Format(PyExc_TypeError, "limits are a tuple of %d numbers", MQ_OWNED);
        return -1;
    }
    for (uint32_t i = 0; i < MQ_OWNED; i++) {
        if (unsigned_of(PyTuple_GetItem(tuple, (Py_ssize_t)i), UINT64_MAX, &limit) != 0)
            return -1;
        max[i] = limit;
    }
    return 0;
}

PyObject *engine_tenant_set(engine_object *self, args_t args, Py_ssize_t count)
{
    char *name;
    Py_ssize_t length;
    uint64_t max[MQ_OWNED];
    unsigned long long rate_max;
    if (take(count, 3) != 0 || PyBytes_AsStringAndSize(args[0], &name, &length) != 0 ||
        limits_from(args[1], max) != 0 || unsigned_of(args[2], UINT32_MAX, &rate_max) != 0)
        return NULL;
    const mq_tenant *tenant = NULL;
    if (length <= (Py_ssize_t)MQ_TENANT_NAME_MAX_BYTES)
        tenant = mq_tenant_set(self->engine, name, (uint32_t)length, max, (uint32_t)rate_max);
    if (tenant == NULL)
        return PyErr_Format(PyExc_ValueError, "the tenant has a name of %zd bytes, or there are more than %u",
                            length, MQ_TENANTS_MAX);
    return PyLong_FromLong(tenant->number);
}

PyObject *engine_tenants_resolve(engine_object *self, PyObject *Py_UNUSED(ignored))
{
    mq_tenants_resolve(self->engine);
    Py_RETURN_NONE;
}

PyObject *engine_tenant_use(engine_object *self, args_t args, Py_ssize_t count)
{
    char *name;
    Py_ssize_t length;
    unsigned long long table;
    if (take(count, 3) != 0 || PyBytes_AsStringAndSize(args[0], &name, &length) != 0 ||
        unsigned_of(args[1], MQ_OWNED - 1, &table) != 0)
        return NULL;
    long long more = PyLong_AsLongLong(args[2]);
    if (more == -1 && PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(length <= (Py_ssize_t)MQ_TENANT_NAME_MAX_BYTES &&
                           mq_tenant_use(self->engine, name, (uint32_t)length, (uint32_t)table, more));
}

PyObject *engine_delayed_counted(engine_object *self, PyObject *Py_UNUSED(ignored))
{
    self->engine->delayed_counted = true;
    Py_RETURN_NONE;
}

static PyObject *numbers_of(const uint64_t *numbers)
{
    PyObject *tuple = PyTuple_New(MQ_OWNED);
    for (uint32_t i = 0; tuple != NULL && i < MQ_OWNED; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(numbers[i]);
        if (number == NULL || PyTuple_SetItem(tuple, (Py_ssize_t)i, number) != 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

PyObject *engine_tenant_stats(engine_object *self, PyObject *object)
{
    unsigned long long number;
    if (unsigned_of(object, UINT32_MAX, &number) != 0)
        return NULL;
    const mq_tenant *tenant = mq_tenant_numbered(self->engine, (uint32_t)number);
    if (tenant == NULL)
        return PyErr_Format(PyExc_ValueError, "no tenant %llu", number);
    return Py_BuildValue("(NNKK)", numbers_of(tenant->used), numbers_of(tenant->refused),
                         (unsigned long long)tenant->published, (unsigned long long)tenant->rate_waits);
}
