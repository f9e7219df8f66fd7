/* SPDX-License-Identifier: Apache-2.0
 *
 * The Python types of ringbuf, in C: functions that are called once per message.
 *
 * cffi releases the GIL around every call.  Next to one busy Python thread, getting it back takes
 * milliseconds (CPython's switch interval is 5 ms).  These METH_FASTCALL functions therefore keep the GIL and
 * release it only for waits.  The GIL also makes a Writer or Reader safe to share between threads.
 *
 * Filters, sequences, buffers and finalizers run Python in the middle of a call.  Rules of these files:
 *   - An object used while Python may run is owned by the call, never borrowed from a field.
 *   - After Python may have run, each object is checked again: it may be closed, or the process forked.
 *   - A reader serves one call at a time (reader_begin()), and so does a writer (busy); others get an
 *     exception.
 *   - A type with references to its users' objects has a tp_traverse, so that rings in a cycle are freed.
 *
 * Limited API of Python 3.11 (one abi3 module for 3.11 and later).  Only these files include Python.h.
 */
#ifndef BRIM_PY_RING_H
#define BRIM_PY_RING_H

#include <Python.h>

#include "ring/ring.h"
#include "base/clock.h"
#include "base/wall_clock.h"

typedef struct writer_object {
    PyObject_HEAD
    rb_writer writer;
    Py_buffer ring, cursors, local_cursors; /* keep the memory mapped */
    PyObject *last_key;      /* key object of `last`, which caches its bytes and hash: devices repeat keys */
    rb_key last;
    rb_wall_clock clock;
    int64_t queue_timeout_ns;
    int64_t full_since_ns;   /* 0: the last publish succeeded */
    PyObject *on_full;       /* frees the slots of dead readers */
    int64_t swept_ns;
    uint64_t rejected;
    unsigned forks;
    bool open, blocks;
    bool topics;             /* keys must be MQTT topic names */
    bool busy;               /* a publish runs Python or waits: other calls get ClaimPending */
} writer_object;

/* Take the key and properties arguments; either may be NULL.  `out` belongs to the caller, because Python
 * code run meanwhile may publish with this writer, too.  0, or -1 with an exception. */
int key_take_new(writer_object *self, PyObject *key, PyObject *properties, rb_key *out);
static inline int key_take(writer_object *self, PyObject *key, PyObject *properties, rb_key *out)
{
    if (key != self->last_key || properties != NULL || (key == NULL && self->topics))
        return key_take_new(self, key, properties, out);
    *out = self->last;
    return 0;
}

typedef struct lease {
    uint64_t end; /* end position of the records that it holds */
    bool done;
} lease;

typedef struct filter_object filter_object;

typedef struct reader_object {
    PyObject_HEAD
    rb_reader reader;
    Py_buffer ring, slots;
    lease *leases; /* of a blocking reader: circular buffer of `lease_capacity`, oldest first */
    uint64_t lease_first, lease_next, lease_capacity;
    filter_object *match;
    int64_t spin_ns;
    uint64_t told_lost;                   /* part of reader.lost that an Overrun has reported */
    unsigned forks;
    uint64_t slice_bytes;                 /* bytes of work since other threads could run */
    unsigned run;                         /* records read since the ring was empty */
    unsigned to_end;                      /* batches that still end at the ring's end, see batch_new() */
    unsigned waiting;                     /* threads that wait with it without the GIL */
    bool reading;                         /* a call moves its cursor; its filter may run Python */
    bool detached;                        /* the call has released the GIL */
    bool open, has_slots, counts_overruns;
} reader_object;

#define NO_LEASE UINT64_MAX
#define RAISED (-100) /* extra result: a Python exception is set */

typedef struct batch_object batch_object;

typedef struct record_object {
    PyObject_HEAD
    reader_object *reader; /* owned */
    batch_object *batch;   /* owned, or NULL */
    rb_view view;
    uint64_t lease;
} record_object;

extern PyTypeObject *writer_type, *claim_type, *reader_type, *record_type, *batch_type, *batch_iterator_type,
    *filter_type;

/* Number of forks between the first process and this one: objects from before a fork do not work in the
 * child. */
extern unsigned forks;

/* Raise ringbuf.errors.NAME(arguments by `format`).  Returns NULL. */
PyObject *fail(const char *name, const char *format, ...);
PyObject *fail_result(int result, const char *doing);

/* Store an integer of 64 bits without a sign.  0, or -1 with ValueError, which has its name, or TypeError. */
int uint64_of(PyObject *object, const char *name, unsigned long long *value);

/* Fill `out` (preset with NULL) from positional and keyword arguments.  0, or -1 with TypeError set. */
int arguments_named(PyObject *const *args, Py_ssize_t count, PyObject *keywords, const char *const *names,
                    int most, int least, PyObject **out);
static inline int arguments(PyObject *const *args, Py_ssize_t count, PyObject *keywords,
                            const char *const *names, int most, int least, PyObject **out)
{
    if (keywords != NULL || count < least || count > most)
        return arguments_named(args, count, keywords, names, most, least, out);
    for (Py_ssize_t i = 0; i < count; i++)
        out[i] = args[i];
    return 0;
}

/* Bytes of a bytes, str (UTF-8) or buffer object.  `buffer` is released by bytes_done(). */
typedef struct bytes_view {
    const void *bytes;
    Py_ssize_t length;
    Py_buffer buffer;
    bool held;
} bytes_view;
int bytes_of(PyObject *object, bytes_view *out);
void bytes_done(bytes_view *view);


PyObject *record_new(reader_object *reader, batch_object *batch, const rb_view *view, uint64_t lease_number);
PyObject *batch_new(reader_object *reader, Py_ssize_t limit);
/* Records from the cursor to the ring's end. */
uint64_t records_to_end(const reader_object *reader);
int reader_next(reader_object *self, rb_view *view);
PyObject *reader_trouble(reader_object *self, int result);
/* Returns 0, or -1 with RingClosed or UsedAfterFork. */
int reader_usable(const reader_object *self);
/* Begin a call that moves the cursor; reader_end() ends it.  0, or -1 with an exception. */
int reader_begin(reader_object *self);
void reader_end(reader_object *self);
/* py_readers.c.  Method Reader.first_due(). */
PyObject *reader_first_due(PyObject *self, PyObject *const *args, Py_ssize_t count);
/* py_lease.c.  Make room for more leases.  0, or -1 with MemoryError. */
int leases_grow(reader_object *self);
uint64_t lease_take(reader_object *self);
void reader_settle(reader_object *self);
void lease_end(reader_object *self, uint64_t number);
/* Returns 1 if the key is accepted, 0 if not, -1 with an exception. */
int filter_matches(filter_object *self, const void *key, uint32_t length);

PyTypeObject *type_from(PyType_Spec *spec);
extern PyType_Spec writer_spec, claim_spec, reader_spec, record_spec, batch_spec, batch_iterator_spec,
    filter_spec;

#endif
