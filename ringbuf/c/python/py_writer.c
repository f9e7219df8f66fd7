/* SPDX-License-Identifier: Apache-2.0
 *
 * Writer and Claim.
 *
 * publish returns the record's offset, or None if a blocking reader blocks the space: a full ring is a state,
 * not an error.  A refusal also returns None: the broker requests it by a word in the header of a producer's
 * ring, for example because the log has no room.  Reading the word costs one load of a cached line per
 * record.  A reader in another process that blocks longer than the queue timeout is evicted.  Local readers
 * (log, bridge) are never evicted.
 */
#include "python/py_ring.h"

#include <string.h>

/* True if this object may still write: it is open, and the process has not forked. */
static bool is_live(const writer_object *self)
{
    return self->open && self->forks == forks;
}

static int writer_live(const writer_object *self)
{
    if (is_live(self))
        return 0;
    fail(self->open ? "UsedAfterFork" : "RingClosed", "(s)", "writer");
    return -1;
}

static int writer_unusable(const writer_object *self)
{
    if (writer_live(self) == 0)
        fail("ClaimPending", "(s)", "another publish of this writer waits for room in the ring");
    return -1;
}

static inline int writer_usable(const writer_object *self)
{
    return is_live(self) && !self->busy ? 0 : writer_unusable(self);
}

/* Get the bytes of the argument `payload`. */
static int payload_of(PyObject *payload, bytes_view *out)
{
    if (!PyBytes_CheckExact(payload) && !PyUnicode_Check(payload) && !PyObject_CheckBuffer(payload)) {
        PyErr_Format(PyExc_TypeError, "payload must be bytes or str, not %R", (PyObject *)Py_TYPE(payload));
        return -1;
    }
    return bytes_of(payload, out);
}

#define SWEEP_NS 10000000ll /* shortest interval of searches for dead readers */

/* Free the slots of dead readers, found by their locks.  RB_OK: the ring has room now; or RB_FULL, or
 * RAISED. */
static int sweep(writer_object *self, uint64_t length, uint32_t prefix, int64_t now)
{
    if (is_live(self) && now - self->swept_ns >= SWEEP_NS) {
        self->swept_ns = now;
        PyObject *on_full = Py_NewRef(self->on_full); /* close() drops its reference */
        PyObject *swept = PyObject_CallNoArgs(on_full);
        Py_DECREF(on_full);
        if (swept == NULL)
            return RAISED;
        Py_DECREF(swept);
    }
    return is_live(self) ? rb_can_claim(&self->writer, length, prefix) : RB_FULL;
}

/* Sweep; if the policy is to block, wait for room and sweep repeatedly.  Other threads may run. */
static int full_wait(writer_object *self, uint64_t length, uint32_t prefix)
{
    int64_t now = rb_now_ns(), deadline = now + (self->blocks ? self->queue_timeout_ns : 0);
    int result;
    while ((result = sweep(self, length, prefix, now)) == RB_FULL && is_live(self) && now < deadline) {
        int64_t left = deadline - now;
        Py_BEGIN_ALLOW_THREADS
        result = rb_writer_wait(&self->writer, length, prefix, left < SWEEP_NS ? left : SWEEP_NS);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals() != 0)
            return RAISED;
        if (result == RB_OK)
            break;
        now = rb_now_ns();
    }
    return result == RAISED || writer_live(self) == 0 ? result : RAISED;
}

/* Sweep, wait, evict or give up after RB_FULL, according to the policy.  RB_OK: try again. */
static int full(writer_object *self, uint64_t length, uint32_t prefix)
{
    self->busy = true;
    int result = full_wait(self, length, prefix);
    self->busy = false;
    if (result != RB_FULL && result != RB_TIMEOUT)
        return result;
    int64_t now = rb_now_ns();
    if (self->full_since_ns == 0)
        self->full_since_ns = now;
    bool patient = !self->blocks && now - self->full_since_ns < self->queue_timeout_ns;
    if (!patient && rb_evict_stalled(&self->writer, length, prefix) > 0 &&
        rb_can_claim(&self->writer, length, prefix) == RB_OK)
        return RB_OK;
    self->rejected++;
    rb_refused_count(self->writer.header, RB_REFUSAL_FULL);
    return RB_FULL;
}

static inline uint32_t refusal_now(const writer_object *self)
{
    const rb_header *header = self->writer.header;
    if (atomic_load_explicit(&header->refusal, memory_order_relaxed) == 0)
        return 0;
    return rb_refusal(header, (uint64_t)rb_now_ns(), (uint64_t)self->queue_timeout_ns);
}

/* Returns 0 with *payload set, 1 if full or refused, -1 with an exception. */
static int claim(writer_object *self, const rb_key *key, uint64_t length, uint16_t flags, uint64_t now,
                 uint8_t **payload)
{
    if (writer_usable(self) != 0) /* again: arguments may have run Python */
        return -1;
    uint32_t why = refusal_now(self);
    if (why != 0) {
        rb_refused_count(self->writer.header, why);
        return 1;
    }
    int result = rb_claim(&self->writer, key, length, flags, now, payload);
    if (result == RB_FULL) {
        result = full(self, length, key->length + key->properties_length);
        if (result != RB_OK)
            return result == RAISED ? -1 : 1;
        result = rb_claim(&self->writer, key, length, flags, now, payload);
    }
    if (result == RB_OK) {
        self->full_since_ns = 0;
        return 0;
    }
    if (result == RB_FULL)
        return 1;
    if (result == RB_TOO_LARGE)
        fail("RecordTooLarge", "(KK)", (unsigned long long)length, (unsigned long long)self->writer.largest);
    else
        fail("ClaimPending", "(s)", "a claim of this writer is neither committed nor aborted");
    return -1;
}

static int flags_take(PyObject *object, uint16_t *flags)
{
    *flags = 0;
    if (object == NULL)
        return 0;
    long value = PyLong_AsLong(object);
    if (value == -1 && PyErr_Occurred())
        return -1;
    if (value < 0 || value > UINT16_MAX || value & RB_FLAGS_CRITICAL) {
        PyErr_Format(PyExc_ValueError, "flags %ld has bits that no version knows (known: 0x%x)", value,
                     ~RB_FLAGS_CRITICAL & 0xffff);
        return -1;
    }
    *flags = (uint16_t)value;
    return 0;
}

static const char *const publish_names[] = {"payload", "key", "flags", "properties"};

static PyObject *writer_publish(writer_object *self, PyObject *const *args, Py_ssize_t count,
                                PyObject *keywords)
{
    PyObject *given[4] = {NULL};
    bytes_view payload;
    rb_key key;
    uint16_t flags;
    uint8_t *to;
    if (writer_usable(self) != 0 || arguments(args, count, keywords, publish_names, 4, 1, given) != 0 ||
        flags_take(given[2], &flags) != 0 || key_take(self, given[1], given[3], &key) != 0 ||
        payload_of(given[0], &payload) != 0)
        return NULL;
    uint64_t now = rb_wall_ns(&self->clock);
    int result = claim(self, &key, (uint64_t)payload.length, flags, now, &to);
    uint64_t offset = self->writer.offset;
    if (result == 0) {
        memmove(to, payload.bytes, (size_t)payload.length); /* the payload may be in this ring */
        rb_commit(&self->writer, (uint64_t)payload.length, true);
        rb_announce_end(&self->writer);
    }
    bytes_done(&payload);
    if (result != 0)
        return result == 1 ? Py_NewRef(Py_None) : NULL;
    return PyLong_FromUnsignedLongLong(offset);
}

static const char *const publish_many_names[] = {"payloads", "key", "flags"};

/* Publish a sequence with one timestamp and one publication of the end. */
static PyObject *writer_publish_many(writer_object *self, PyObject *const *args, Py_ssize_t count,
                                     PyObject *keywords)
{
    PyObject *given[3] = {NULL};
    rb_key key;
    uint16_t flags;
    if (writer_usable(self) != 0 || arguments(args, count, keywords, publish_many_names, 3, 1, given) != 0 ||
        flags_take(given[2], &flags) != 0 || key_take(self, given[1], NULL, &key) != 0)
        return NULL;
    bool list = PyList_CheckExact(given[0]);
    Py_ssize_t length = PySequence_Size(given[0]), done = 0;
    if (length < 0)
        return NULL;
    uint64_t now = rb_wall_ns(&self->clock);
    int result = 0;
    for (; done < length && result == 0; done++) {
        PyObject *item = list ? Py_XNewRef(PyList_GetItem(given[0], done))
                              : PySequence_GetItem(given[0], done);
        bytes_view payload;
        uint8_t *to;
        result = item == NULL ? -1 : payload_of(item, &payload);
        if (result == 0) {
            result = claim(self, &key, (uint64_t)payload.length, flags, now, &to);
            if (result == 0) {
                memmove(to, payload.bytes, (size_t)payload.length);
                rb_commit(&self->writer, (uint64_t)payload.length, true);
            }
            bytes_done(&payload);
        }
        Py_XDECREF(item);
        if (result != 0)
            break;
    }
    if (is_live(self)) /* Python code of the sequence may have closed it, or forked */
        rb_announce_end(&self->writer);
    return result < 0 ? NULL : PyLong_FromSsize_t(done);
}

/* ---- Claim ---- */

typedef struct claim_object {
    PyObject_HEAD
    writer_object *writer; /* owned until the end: views may outlive the commit and need the mapping */
    uint8_t *payload;      /* NULL: no room, or refused */
    uint64_t length;
    bool done;             /* committed, aborted, or without room */
} claim_object;

static const char *const claim_names[] = {"length", "key", "flags", "properties"};

static PyObject *writer_claim(writer_object *self, PyObject *const *args, Py_ssize_t count,
                              PyObject *keywords)
{
    PyObject *given[4] = {NULL};
    rb_key key;
    uint16_t flags;
    uint8_t *to;
    if (writer_usable(self) != 0 || arguments(args, count, keywords, claim_names, 4, 1, given) != 0 ||
        flags_take(given[2], &flags) != 0 || key_take(self, given[1], given[3], &key) != 0)
        return NULL;
    unsigned long long length;
    if (uint64_of(given[0], "length", &length) != 0)
        return NULL;
    int result = claim(self, &key, length, flags, rb_wall_ns(&self->clock), &to);
    if (result < 0)
        return NULL;
    claim_object *claim_made = PyObject_New(claim_object, claim_type);
    if (claim_made == NULL) {
        if (result == 0)
            rb_abort(&self->writer);
        return NULL;
    }
    claim_made->writer = (writer_object *)Py_NewRef((PyObject *)self);
    claim_made->payload = result == 0 ? to : NULL;
    claim_made->length = length;
    claim_made->done = result != 0;
    return (PyObject *)claim_made;
}

static int claim_usable(claim_object *self)
{
    if (self->payload == NULL) {
        fail("NoRoom", "(K)", (unsigned long long)self->length);
        return -1;
    }
    if (self->done) {
        fail("RingClosed", "(s)", "claim: already committed or aborted");
        return -1;
    }
    return writer_usable(self->writer);
}

static PyObject *claim_commit(claim_object *self, PyObject *const *args, Py_ssize_t count)
{
    if (claim_usable(self) != 0)
        return NULL;
    unsigned long long actual = self->length;
    if (count > 1) {
        PyErr_SetString(PyExc_TypeError, "commit takes at most one argument: how many bytes were filled");
        return NULL;
    }
    if (count == 1 && args[0] != Py_None && uint64_of(args[0], "length", &actual) != 0)
        return NULL;
    if (actual > self->length) {
        PyErr_Format(PyExc_ValueError, "commit of %llu bytes exceeds the %llu that were claimed", actual,
                     (unsigned long long)self->length);
        return NULL;
    }
    rb_writer *writer = &self->writer->writer;
    rb_commit(writer, actual, actual <= RB_CHECKED_IN_PLACE_MAX_BYTES);
    rb_announce_end(writer);
    uint64_t offset = writer->offset - 1;
    self->done = true;
    return PyLong_FromUnsignedLongLong(offset);
}

static PyObject *claim_abort(claim_object *self, PyObject *Py_UNUSED(ignored))
{
    if (claim_usable(self) != 0)
        return NULL;
    rb_abort(&self->writer->writer);
    self->done = true;
    Py_RETURN_NONE;
}

/* Returns None without room, as publish() does. */
static PyObject *claim_enter(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return Py_NewRef(((claim_object *)self)->payload == NULL ? Py_None : self);
}

static int claim_true(PyObject *self)
{
    return ((claim_object *)self)->payload != NULL;
}

/* Commit at a normal end, abort after an exception.  No effect if the block did either. */
static PyObject *claim_exit(claim_object *self, PyObject *const *args, Py_ssize_t count)
{
    if (self->done)
        Py_RETURN_NONE;
    PyObject *result = count > 0 && args[0] != Py_None ? claim_abort(self, NULL)
                                                       : claim_commit(self, NULL, 0);
    if (result == NULL)
        return NULL;
    Py_DECREF(result);
    Py_RETURN_NONE;
}

static int claim_buffer(PyObject *self, Py_buffer *view, int flags)
{
    claim_object *open_claim = (claim_object *)self;
    if (claim_usable(open_claim) != 0)
        return -1;
    return PyBuffer_FillInfo(view, self, open_claim->payload, (Py_ssize_t)open_claim->length, 0, flags);
}

static Py_ssize_t claim_length(PyObject *self)
{
    return (Py_ssize_t)((claim_object *)self)->length;
}

static int claim_put(PyObject *self, Py_ssize_t i, PyObject *value)
{
    claim_object *open_claim = (claim_object *)self;
    long byte = value == NULL ? -1 : PyLong_AsLong(value);
    if (claim_usable(open_claim) != 0 || PyErr_Occurred())
        return -1;
    if (i < 0 || (uint64_t)i >= open_claim->length || byte < 0 || byte > 255) {
        bool outside = i < 0 || (uint64_t)i >= open_claim->length;
        PyErr_SetString(outside ? PyExc_IndexError : PyExc_ValueError,
                        outside ? "claim index out of range" : "a byte must be in range(0, 256)");
        return -1;
    }
    open_claim->payload[i] = (uint8_t)byte;
    return 0;
}

/* A dropped claim leaves no record.  The type has no tp_traverse, which would cost some ns per claim: writers
 * have no references to objects that keep claims. */
static void claim_dealloc(PyObject *self)
{
    claim_object *open_claim = (claim_object *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (!open_claim->done && is_live(open_claim->writer))
        rb_abort(&open_claim->writer->writer);
    Py_DECREF((PyObject *)open_claim->writer);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef claim_methods[] = {
    {"commit", (PyCFunction)(void (*)(void))claim_commit, METH_FASTCALL,
     "Turn the claim into a record; return its offset."},
    {"abort", (PyCFunction)claim_abort, METH_NOARGS, "Discard the claim; no record is written."},
    {"__enter__", claim_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))claim_exit, METH_FASTCALL, NULL},
    {0},
};

static PyType_Slot claim_slots[] = {
    {Py_tp_doc, "Room for one record, writable in place (buffer protocol) until commit or abort.\n\n"
                "Without room, or refused, it is false, and None as the target of `with`."},
    {Py_tp_dealloc, claim_dealloc},
    {Py_tp_methods, claim_methods},
    {Py_bf_getbuffer, claim_buffer},
    {Py_nb_bool, claim_true},
    {Py_sq_length, claim_length},
    {Py_sq_ass_item, claim_put},
    {0},
};

PyType_Spec claim_spec = {"ringbuf.Claim", sizeof(claim_object), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, claim_slots};

/* ---- Writer ---- */

static PyObject *writer_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"ring",          "cursors", "local_cursors",
                            "on_full",       "blocks",  "queue_timeout_ns",
                            "only_admitted", "topics",  NULL};
    PyObject *ring, *cursors, *local_cursors, *on_full;
    int blocks, only_admitted, topics = 0;
    long long queue_timeout_ns;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOOpLp|p", names, &ring, &cursors, &local_cursors,
                                     &on_full, &blocks, &queue_timeout_ns, &only_admitted, &topics))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    writer_object *self = (writer_object *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    if (PyObject_GetBuffer(ring, &self->ring, PyBUF_WRITABLE) == 0 &&
        PyObject_GetBuffer(cursors, &self->cursors, PyBUF_WRITABLE) == 0 &&
        PyObject_GetBuffer(local_cursors, &self->local_cursors, PyBUF_WRITABLE) == 0) {
        if (self->cursors.len >= RB_CURSORS_BYTES && self->local_cursors.len >= RB_CURSORS_BYTES &&
            rb_writer_open(&self->writer, self->ring.buf, (uint64_t)self->ring.len, self->cursors.buf,
                           self->local_cursors.buf) == RB_OK) {
            rb_writer_select_blocking(&self->writer, only_admitted);
            self->last.bytes = "";
            self->on_full = Py_NewRef(on_full);
            self->blocks = blocks;
            self->topics = topics;
            self->queue_timeout_ns = queue_timeout_ns;
            self->forks = forks;
            self->open = true;
            return (PyObject *)self;
        }
        fail("Corrupt", "(s)", "the ring's end and its watermark contradict each other; move the file away");
    }
    Py_DECREF(self);
    return NULL;
}

static int writer_traverse(PyObject *self, visitproc visit, void *arg)
{
    writer_object *writer = (writer_object *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(writer->on_full);
    Py_VISIT(writer->last_key);
    return 0;
}

/* Break the reference cycle: on_full references the ring, which references this writer. */
static int writer_clear(PyObject *self)
{
    writer_object *writer = (writer_object *)self;
    writer->open = false;
    writer->last = (rb_key){.bytes = ""};
    Py_CLEAR(writer->last_key);
    Py_CLEAR(writer->on_full);
    return 0;
}

static void writer_dealloc(PyObject *self)
{
    writer_object *writer = (writer_object *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    writer_clear(self);
    PyBuffer_Release(&writer->ring);
    PyBuffer_Release(&writer->cursors);
    PyBuffer_Release(&writer->local_cursors);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *writer_close(writer_object *self, PyObject *Py_UNUSED(ignored))
{
    writer_clear((PyObject *)self);
    Py_RETURN_NONE;
}

static PyObject *writer_address(writer_object *self, void *Py_UNUSED(closure))
{
    if (self->busy) /* admit and evict are needed just then, and are safe */
        return PyLong_FromVoidPtr(&self->writer);
    return writer_usable(self) != 0 ? NULL : PyLong_FromVoidPtr(&self->writer);
}

static PyObject *writer_end_offset(writer_object *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(self->writer.offset);
}

static PyObject *writer_end_position(writer_object *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(self->writer.tail);
}

static PyObject *writer_rejected(writer_object *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(self->rejected);
}

static PyObject *writer_refusal(writer_object *self, void *Py_UNUSED(closure))
{
    return writer_usable(self) != 0 ? NULL : PyLong_FromUnsignedLong(refusal_now(self));
}

static PyObject *writer_record_max(writer_object *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(self->writer.largest);
}

static PyMethodDef writer_methods[] = {
    {"publish", (PyCFunction)(void (*)(void))writer_publish, METH_FASTCALL | METH_KEYWORDS,
     "Copy one record in; its offset, or None when a blocking reader is in the way or it is refused."},
    {"publish_many", (PyCFunction)(void (*)(void))writer_publish_many, METH_FASTCALL | METH_KEYWORDS,
     "Copy a sequence of payloads in; how many went in."},
    {"claim", (PyCFunction)(void (*)(void))writer_claim, METH_FASTCALL | METH_KEYWORDS,
     "Room for `length` payload bytes to fill in place; false where publish() returns None."},
    {"close", (PyCFunction)writer_close, METH_NOARGS, "Refuse further use."},
    {0},
};

static PyGetSetDef writer_fields[] = {
    {"address", (getter)writer_address, NULL,
     "Address of the rb_writer, for C; valid while this object lives.", NULL},
    {"end_offset", (getter)writer_end_offset, NULL, "Offset of the next record.", NULL},
    {"end_position", (getter)writer_end_position, NULL, "Position of the next record.", NULL},
    {"rejected", (getter)writer_rejected, NULL, "Number of publishes that found the ring full.", NULL},
    {"refusal", (getter)writer_refusal, NULL,
     "Why publishes are refused now, REFUSAL_*; 0: they are not, or only while the ring is full.", NULL},
    {"record_max_bytes", (getter)writer_record_max, NULL, "Longest record, header and key included.", NULL},
    {0},
};

static PyType_Slot writer_slots[] = {
    {Py_tp_doc, "The one writer of a ring."},
    {Py_tp_new, writer_new},
    {Py_tp_dealloc, writer_dealloc},
    {Py_tp_traverse, writer_traverse},
    {Py_tp_clear, writer_clear},
    {Py_tp_methods, writer_methods},
    {Py_tp_getset, writer_fields},
    {0},
};

PyType_Spec writer_spec = {"ringbuf.Writer", sizeof(writer_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, writer_slots};
