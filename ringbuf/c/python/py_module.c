/* SPDX-License-Identifier: Apache-2.0
 *
 * Common parts of the Python types: installation, arguments, buffers, errors.
 */
#include "python/py_ring.h"

#include <pthread.h>
#include <stdarg.h>
#include <string.h>

PyTypeObject *writer_type, *claim_type, *reader_type, *record_type, *batch_type, *batch_iterator_type,
    *filter_type;
unsigned forks;

static void after_fork_in_child(void)
{
    forks++;
}

PyObject *fail(const char *name, const char *format, ...)
{
    PyObject *errors = PyImport_ImportModule("ringbuf.errors"), *made = NULL, *class = NULL,
             *arguments = NULL;
    if (errors != NULL)
        class = PyObject_GetAttrString(errors, name);
    if (class != NULL) {
        va_list list;
        va_start(list, format);
        arguments = Py_VaBuildValue(format, list);
        va_end(list);
    }
    if (arguments != NULL)
        made = PyObject_CallObject(class, arguments);
    if (made != NULL)
        PyErr_SetObject(class, made);
    Py_XDECREF(made);
    Py_XDECREF(arguments);
    Py_XDECREF(class);
    Py_XDECREF(errors);
    return NULL;
}

int uint64_of(PyObject *object, const char *name, unsigned long long *value)
{
    *value = PyLong_AsUnsignedLongLong(object);
    if (*value != (unsigned long long)-1 || !PyErr_Occurred())
        return 0;
    if (PyErr_ExceptionMatches(PyExc_OverflowError))
        PyErr_Format(PyExc_ValueError, "invalid %s %S (allowed: 0 to 18446744073709551615)", name, object);
    return -1;
}

int arguments_named(PyObject *const *args, Py_ssize_t count, PyObject *keywords, const char *const *names,
                    int most, int least, PyObject **out)
{
    if (count > most) {
        PyErr_Format(PyExc_TypeError, "at most %d arguments are taken, %zd were given", most, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        out[i] = args[i];
    Py_ssize_t named = keywords == NULL ? 0 : PyTuple_Size(keywords);
    for (Py_ssize_t k = 0; k < named; k++) {
        PyObject *name = PyTuple_GetItem(keywords, k);
        int i = 0;
        while (i < most && PyUnicode_CompareWithASCIIString(name, names[i]) != 0)
            i++;
        if (i == most || out[i] != NULL) {
            PyErr_Format(PyExc_TypeError, "argument '%U' is %s", name, i == most ? "unknown" : "given twice");
            return -1;
        }
        out[i] = args[count + k];
    }
    for (int i = 0; i < least; i++)
        if (out[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "argument '%s' is missing", names[i]);
            return -1;
        }
    return 0;
}

int bytes_of(PyObject *object, bytes_view *out)
{
    out->held = false;
    if (PyBytes_CheckExact(object)) {
        char *bytes;
        int result = PyBytes_AsStringAndSize(object, &bytes, &out->length);
        out->bytes = bytes;
        return result;
    }
    if (PyUnicode_Check(object)) {
        out->bytes = PyUnicode_AsUTF8AndSize(object, &out->length);
        return out->bytes == NULL ? -1 : 0;
    }
    if (PyObject_GetBuffer(object, &out->buffer, PyBUF_SIMPLE) != 0)
        return -1;
    out->bytes = out->buffer.buf;
    out->length = out->buffer.len;
    out->held = true;
    return 0;
}

void bytes_done(bytes_view *view)
{
    if (view->held)
        PyBuffer_Release(&view->buffer);
    view->held = false;
}

static struct {
    const char *name;
    PyTypeObject **type;
    PyType_Spec *spec;
} types[] = {
    {"Writer", &writer_type, &writer_spec},
    {"Claim", &claim_type, &claim_spec},
    {"Reader", &reader_type, &reader_spec},
    {"Record", &record_type, &record_spec},
    {"Batch", &batch_type, &batch_spec},
    {"_BatchIterator", &batch_iterator_type, &batch_iterator_spec},
    {"KeyFilter", &filter_type, &filter_spec},
};

static int install_types(PyObject *module)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        PyObject *type = PyType_FromSpec(types[i].spec);
        if (type == NULL)
            return -1;
        *types[i].type = (PyTypeObject *)type;
        if (PyModule_AddObjectRef(module, types[i].name, type) != 0)
            return -1;
    }
    return 0;
}

int rb_install(const char *name)
{
    static bool installed;
    PyGILState_STATE state = PyGILState_Ensure(); /* cffi has released it */
    int result = 0;
    if (!installed) {
        PyObject *module = PyImport_AddModule(name);
        result = module == NULL ? -1 : install_types(module);
        installed = result == 0;
        if (installed)
            pthread_atfork(NULL, NULL, after_fork_in_child);
        else
            PyErr_Clear();
    }
    PyGILState_Release(state);
    return result;
}
