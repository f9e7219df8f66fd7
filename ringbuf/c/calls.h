/* SPDX-License-Identifier: Apache-2.0
 *
 * The Python types of ringbuf, in C: what is called once a message.
 *
 * cffi releases the GIL around every call; beside one busy Python thread, getting it back costs
 * milliseconds (CPython's switch interval is 5 ms).  So these are METH_FASTCALL functions that keep it, and
 * give it up only to wait.  The GIL is also what makes a Writer or Reader safe to share between threads.
 *
 * Rules of these files, as filters, sequences, buffers and finalizers run Python in the middle of a call:
 *   - what a call uses while Python may run is owned by that call, never borrowed from a field;
 *   - after Python may have run, an object is looked at again: it may be closed, or forked;
 *   - a reader serves one call at a time (reader_begin()), a writer too (busy); others get an exception;
 *   - a type that leads back to objects of its users has a tp_traverse: rings dropped in a cycle are freed.
 *
 * Limited API of Python 3.11 (one abi3 module for 3.11 and later): only these files include Python.h.
 */
#ifndef BRIM_CALLS_H
#define BRIM_CALLS_H

#include <Python.h>

#include "ring.h"

typedef struct writer_object {
    PyObject_HEAD
    rb_writer writer;
    Py_buffer ring, cursors; /* keep both mappings mapped */
    PyObject *last_key;      /* the key whose bytes and hash `last` holds: devices repeat theirs */
    rb_key last;
    int64_t queue_timeout_ns;
    int64_t full_since_ns;   /* 0: the last publish went in */
    PyObject *on_full;       /* frees the slots of dead readers */
    int64_t swept_ns;
    uint64_t rejected;
    unsigned forks;
    bool open, blocks;
    bool topics;             /* keys must be MQTT topic names */
    bool busy;               /* a publish runs Python or waits: others are told ClaimPending */
} writer_object;

/* The key and properties arguments, either of which may be NULL.  `out` is the caller's own: what runs Python
 * meanwhile may publish with this writer too.  0, or -1 with an exception. */
int key_take(writer_object *self, PyObject *key, PyObject *properties, rb_key *out);

typedef struct lease {
    uint64_t end; /* position behind what it holds */
    bool done;
} lease;

typedef struct filter_object filter_object;

typedef struct reader_object {
    PyObject_HEAD
    rb_reader reader;
    Py_buffer ring, slots;
    lease *leases;                        /* of a gating reader, oldest first: a ring of `lease_room` */
    uint64_t lease_first, lease_next, lease_room;
    filter_object *match;
    int64_t spin_ns;
    uint64_t told_lost;                   /* of reader.lost, what an Overrun has told */
    unsigned forks;
    uint64_t slice_bytes;                 /* of work since other threads had a chance to run */
    unsigned waiting;                     /* threads that look at it without the GIL */
    bool reading;                         /* a call moves its cursor; its filter may run Python */
    bool detached;                        /* and does so without the GIL */
    bool open, has_slots, counts_overruns;
} reader_object;

#define NO_LEASE UINT64_MAX
#define RAISED (-100) /* among results of C: a Python exception is set */

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

/* How often this process has been a forked child: objects made before do not work in it. */
extern unsigned forks;

/* Raises ringbuf.errors.NAME(arguments by `format`), and returns NULL. */
PyObject *fail(const char *name, const char *format, ...);
PyObject *fail_result(int result, const char *doing);

/* Fills `out` (preset with NULL) from positional and keyword arguments.  0, or -1 with TypeError set. */
int arguments(PyObject *const *args, Py_ssize_t count, PyObject *keywords, const char *const *names, int most,
              int least, PyObject **out);

/* Bytes of a bytes, str (UTF-8) or buffer object.  `buffer` is released by bytes_done(). */
typedef struct bytes_view {
    const void *bytes;
    Py_ssize_t length;
    Py_buffer buffer;
    bool held;
} bytes_view;
int bytes_of(PyObject *object, bytes_view *out);
void bytes_done(bytes_view *view);

uint64_t wall_clock_ns(void);
int64_t monotonic_ns(void);

PyObject *record_new(reader_object *reader, batch_object *batch, const rb_view *view, uint64_t lease_number);
PyObject *batch_new(reader_object *reader, Py_ssize_t limit);
/* What stands for a ring where records lie in bytes of a Python object: positions are places in them. */
reader_object *reader_of_bytes(PyObject *bytes);
int reader_next(reader_object *self, rb_view *view);
PyObject *reader_trouble(reader_object *self, int result);
/* 0, or -1 with RingClosed or UsedAfterFork. */
int reader_usable(const reader_object *self);
/* Begins a call that moves the cursor, until reader_end().  0, or -1 with an exception. */
int reader_begin(reader_object *self);
void reader_end(reader_object *self);
/* calls_lease.c.  Places for more leases: 0, or -1 with MemoryError. */
int leases_grow(reader_object *self);
uint64_t lease_take(reader_object *self);
void reader_settle(reader_object *self);
void lease_end(reader_object *self, uint64_t number);
/* 1 accepted, 0 not, -1 an exception. */
int filter_judge(filter_object *self, const void *key, uint32_t length);

PyTypeObject *type_from(PyType_Spec *spec);
extern PyType_Spec writer_spec, claim_spec, reader_spec, record_spec, batch_spec, batch_iterator_spec,
    filter_spec;

#endif
