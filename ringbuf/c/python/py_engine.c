/* SPDX-License-Identifier: Apache-2.0
 *
 * The Python type Engine: decisions of Python about one client, subscription or topic, for the hot path.
 *
 * METH_FASTCALL functions that keep the GIL, as explained in py_ring.h: while another thread is busy, each
 * call that released the GIL would cost milliseconds.  Only mq_loop_poll() releases it.
 *
 * Connections and sessions are handles (int, never 0); topics and rings are small ints.  A stale handle is
 * not an error, because the client may have left: such calls return False.  An index out of range is a bug of
 * the caller: ValueError.  Only the polling thread may call these functions.
 *
 * There is no tp_traverse.  The garbage collector would otherwise clear `rings` before the engine is freed,
 * and C uses the rings until then.
 */
#include "python/py_engine.h"

#include <string.h>

static PyTypeObject *engine_type;

/* ---- rings ---- */

/* Add `ring`, and keep its Writer or Reader alive. */
static PyObject *ring_new(engine_object *self, mq_ring ring, PyObject *end)
{
    int index = mq_ring_add(self->engine, ring);
    if (index < 0)
        return PyErr_Format(PyExc_OverflowError, "more than %d rings", MQ_RINGS_MAX - 1);
    PyObject *key = PyLong_FromLong(index);
    if (key == NULL || PyDict_SetItem(self->rings, key, end) != 0) {
        mq_ring_remove(self->engine, (uint32_t)index);
        Py_XDECREF(key);
        return NULL;
    }
    return key;
}

static PyObject *add_ring(engine_object *self, args_t args, Py_ssize_t count)
{
    if (take(count, 3) != 0)
        return NULL;
    if (!PyObject_TypeCheck(args[0], writer_type))
        return PyErr_Format(PyExc_TypeError, "expected a ringbuf Writer, not %R",
                            (PyObject *)Py_TYPE(args[0]));
    writer_object *writer = (writer_object *)args[0];
    if (!writer->open || writer->forks != forks)
        return fail("RingClosed", "(s)", "writer");
    bool hide = atomic_load_explicit(&writer->writer.header->visible_when_durable, memory_order_relaxed);
    unsigned long long gate;
    if (unsigned_of(args[1], MQ_GATE_UPSTREAM, &gate) != 0)
        return NULL;
    mq_ring ring = {.kind = MQ_RING_OWN,
                    .writer = &writer->writer,
                    .ack_gate = {.event = (uint8_t)gate, .visible_when_durable = hide},
                    .logged_to = args[2] == Py_True ? UINT64_MAX : 0,
                    .blocks = writer->blocks,
                    .queue_timeout_ms = (uint32_t)(writer->queue_timeout_ns / 1000000)};
    return ring_new(self, ring, args[0]);
}

static PyObject *add_reader(engine_object *self, PyObject *reader)
{
    if (!PyObject_TypeCheck(reader, reader_type))
        return PyErr_Format(PyExc_TypeError, "expected a ringbuf Reader, not %R",
                            (PyObject *)Py_TYPE(reader));
    if (reader_usable((reader_object *)reader) != 0)
        return NULL;
    mq_ring ring = {.kind = MQ_RING_OF_PRODUCER, .reader = &((reader_object *)reader)->reader};
    return ring_new(self, ring, reader);
}

static PyObject *remove_ring(engine_object *self, PyObject *index)
{
    unsigned long long ring;
    if (unsigned_of(index, MQ_RINGS_MAX - 1, &ring) != 0)
        return NULL;
    mq_ring_remove(self->engine, (uint32_t)ring);
    if (PyDict_DelItem(self->rings, index) != 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *resume_ring(engine_object *self, PyObject *index)
{
    unsigned long long ring;
    if (unsigned_of(index, MQ_RINGS_MAX - 1, &ring) != 0)
        return NULL;
    if (ring < self->engine->ring_count && self->engine->rings[ring] != NULL)
        self->engine->rings[ring]->answered = true;
    Py_RETURN_NONE;
}

/* Same effect as mq_loop_wake_fd(), for callers without a loop. */
static PyObject *read_producers(engine_object *self, PyObject *Py_UNUSED(ignored))
{
    self->engine->producers_pending = true;
    Py_RETURN_NONE;
}

/* ---- connections ---- */

static PyObject *open_detached(engine_object *self, PyObject *listener)
{
    unsigned long long number;
    if (unsigned_of(listener, MQ_LISTENERS_MAX - 1, &number) != 0)
        return NULL;
    mq_connection *connection = mq_connection_open(self->engine, -1, (int)number);
    if (connection == NULL)
        return PyErr_NoMemory();
    return PyLong_FromUnsignedLongLong(mq_handle(&connection->item));
}

static PyObject *feed(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_connection *connection;
    HELD_VIEW data = {0};
    uint32_t taken = 0;
    if (take(count, 2) != 0 || view_of(args[1], &data) != 0 || live_from(self, args[0], &connection) != 0)
        return NULL;
    while (connection != NULL && connection->stop == MQ_RUN && connection->turn.fifo == NULL &&
           taken < (uint32_t)data.length) {
        uint32_t capacity, left = (uint32_t)data.length - taken;
        uint8_t *to = mq_receive_buffer(self->engine, connection, &capacity);
        if (to == NULL)
            break;
        capacity = left < capacity ? left : capacity;
        memcpy(to, (const uint8_t *)data.bytes + taken, capacity);
        mq_received(self->engine, connection, capacity);
        taken += capacity;
    }
    return PyLong_FromUnsignedLong(taken);
}

static PyObject *pull(engine_object *self, PyObject *handle)
{
    mq_connection *connection;
    if (connection_from(self, handle, &connection) != 0)
        return NULL;
    if (connection == NULL)
        return PyBytes_FromStringAndSize("", 0);
    mq_fifo_leave(&connection->touched);
    if (connection->stop != MQ_STOP_CLOSING && mq_fill_output(self->engine, connection))
        mq_connection_touch(self->engine, connection);
    if (!mq_journal_written(self->engine))
        return PyBytes_FromStringAndSize("", 0);
    mq_bytes *out = &connection->out;
    uint32_t length = mq_sendable_bytes(self->engine, connection);
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)out->at + out->start, length);
    if (bytes == NULL)
        return NULL;
    self->engine->counters.bytes_out += length;
    mq_output_sent(connection, length);
    out->start += length;
    if (out->start < out->end)
        return bytes;
    mq_bytes_free(self->engine, out);
    if (connection->stop == MQ_STOP_OUT) {
        connection->stop = MQ_RUN;
        mq_connection_ready(self->engine, connection);
    }
    return bytes;
}

static PyObject *forget(engine_object *self, PyObject *handle)
{
    mq_connection *connection;
    if (connection_from(self, handle, &connection) != 0)
        return NULL;
    if (connection != NULL && connection->fd < 0 && connection->stop == MQ_STOP_CLOSING)
        mq_connection_forget(self->engine, connection);
    Py_RETURN_NONE;
}

static PyObject *is_open(engine_object *self, PyObject *handle)
{
    mq_connection *connection;
    return live_from(self, handle, &connection) != 0 ? NULL : PyBool_FromLong(connection != NULL);
}

static PyObject *step(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long now_ms, now_ns;
    if (take(count, 2) != 0 || unsigned_of(args[0], UINT64_MAX, &now_ms) != 0 ||
        unsigned_of(args[1], UINT64_MAX, &now_ns) != 0)
        return NULL;
    mq_clock_set(self->engine, now_ms * 1000000, now_ns);
    self->engine->input_read_ms = now_ms;
    mq_events_resume(self->engine);
    do
        mq_engine_step(self->engine);
    /* no other connection has a turn */
    while (self->engine->ready.count > 0 && mq_events_waiting(self->engine) == 0);
    return PyLong_FromUnsignedLong(mq_events_waiting(self->engine));
}

static PyObject *send_bytes(engine_object *self, args_t args, Py_ssize_t count, bool after_journal)
{
    mq_connection *connection;
    HELD_VIEW data = {0};
    if (take(count, 2) != 0 || view_of(args[1], &data) != 0 || live_from(self, args[0], &connection) != 0)
        return NULL;
    if (connection != NULL && after_journal)
        mq_output_barrier(self->engine, connection);
    bool sent = connection != NULL &&
                mq_write_output(self->engine, connection, data.bytes, (uint32_t)data.length);
    return PyBool_FromLong(sent);
}

static PyObject *send_at_once(engine_object *self, args_t args, Py_ssize_t count)
{
    return send_bytes(self, args, count, false);
}

static PyObject *send_after_journal(engine_object *self, args_t args, Py_ssize_t count)
{
    return send_bytes(self, args, count, true);
}

static PyObject *close_connection(engine_object *self, PyObject *handle)
{
    mq_connection *connection;
    if (live_from(self, handle, &connection) != 0)
        return NULL;
    if (connection != NULL)
        mq_connection_close(self->engine, connection, MQ_CLOSE_SERVER);
    return PyBool_FromLong(connection != NULL);
}

static PyObject *pause_connection(engine_object *self, PyObject *handle)
{
    mq_connection *connection;
    if (live_from(self, handle, &connection) != 0)
        return NULL;
    bool pauses = connection != NULL && connection->stop == MQ_STOP_PYTHON;
    if (pauses)
        connection->stop = MQ_STOP_DEFERRED;
    return PyBool_FromLong(pauses);
}

static PyObject *converse(engine_object *self, PyObject *handle)
{
    mq_connection *connection;
    if (live_from(self, handle, &connection) != 0)
        return NULL;
    if (connection != NULL)
        connection->conversing = true;
    return PyBool_FromLong(connection != NULL);
}

static PyObject *resume_connection(engine_object *self, PyObject *handle)
{
    mq_connection *connection;
    if (live_from(self, handle, &connection) != 0)
        return NULL;
    bool paused = connection != NULL && connection->stop == MQ_STOP_DEFERRED;
    if (paused) {
        connection->stop = MQ_RUN;
        connection->last_seen_ms = self->engine->now_ms;
        mq_connection_ready(self->engine, connection);
    }
    return PyBool_FromLong(paused);
}

static PyObject *authorize(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_connection *connection;
    mq_topic *topic;
    if (take(count, 3) != 0 || live_from(self, args[0], &connection) != 0 ||
        topic_from(self, args[1], &topic) != 0)
        return NULL;
    if (connection != NULL)
        mq_authorize(self->engine, connection, topic, args[2] == Py_True);
    return PyBool_FromLong(connection != NULL);
}

static PyObject *drop_publish(engine_object *self, args_t args, Py_ssize_t count)
{
    mq_connection *connection;
    unsigned long long reason;
    if (take(count, 2) != 0 || live_from(self, args[0], &connection) != 0 ||
        unsigned_of(args[1], 255, &reason) != 0)
        return NULL;
    if (reason < MQ_REASON_UNSPECIFIED_ERROR)
        return PyErr_Format(PyExc_ValueError, "invalid reason code %llu (allowed: 128 to 255)", reason);
    if (connection != NULL) {
        connection->answered = true;
        connection->refusal_reason = (uint8_t)reason;
    }
    return PyBool_FromLong(connection != NULL);
}

static PyObject *clear_acl_cache(engine_object *self, PyObject *Py_UNUSED(ignored))
{
    self->engine->policy++;
    Py_RETURN_NONE;
}

/* ---- events ---- */

static PyObject *event_data(const engine_object *self, const mq_event *event)
{
    if (event->kind == MQ_EVENT_PRODUCER_TOPIC) {
        const mq_ring *ring = self->engine->rings[event->detail];
        return PyBytes_FromStringAndSize((const char *)ring->requested_topic,
                                         ring->requested_topic ? (Py_ssize_t)ring->requested_topic_length
                                                               : 0);
    }
    if (event->kind == MQ_EVENT_PRODUCER_BAD || event->kind == MQ_EVENT_CLOSED ||
        event->kind == MQ_EVENT_BACKFILL || event->kind == MQ_EVENT_JOURNAL)
        return PyBytes_FromStringAndSize("", 0);
    const mq_connection *connection = mq_slab_get(&self->engine->connections, event->handle);
    if (connection == NULL || connection->stop != MQ_STOP_PYTHON)
        return NULL; /* closed since, within the same poll: CLOSED follows */
    if (event->kind == MQ_EVENT_TOPIC && event->detail != 0) {
        const mq_alias *alias = &connection->aliases[event->detail - 1];
        return PyBytes_FromStringAndSize((const char *)alias->name, alias->length);
    }
    const uint8_t *data = connection->in.at + connection->in.start + event->at;
    uint32_t length = event->length;
    if (event->kind == MQ_EVENT_TOPIC && connection->tenant != NULL)
        length = mq_tenant_full_name(self->engine, connection->tenant, data, length, &data);
    return PyBytes_FromStringAndSize((const char *)data, length);
}

static PyObject *events(engine_object *self, args_t args, Py_ssize_t count)
{
    unsigned long long events_max = MQ_EVENTS;
    if (count > 1)
        return PyErr_Format(PyExc_TypeError, "events() takes at most 1 argument, not %zd", count);
    if (count == 1 && unsigned_of(args[0], MQ_EVENTS, &events_max) != 0)
        return NULL;
    uint64_t end = self->engine->event_taken + events_max;
    PyObject *list = PyList_New(0);
    mq_event event;
    uint32_t ring = 0;
    while (list != NULL && mq_event_take(self->engine, end, &ring, &event)) {
        PyObject *data = event_data(self, &event);
        if (data == NULL && !PyErr_Occurred())
            continue;
        PyObject *tuple = data == NULL ? NULL
                                       : Py_BuildValue("(IKIN)", event.kind, (unsigned long long)event.handle,
                                                       event.detail, data);
        if (tuple == NULL || PyList_Append(list, tuple) != 0)
            Py_CLEAR(list);
        Py_XDECREF(tuple);
    }
    return list;
}

/* ---- the type ---- */

static PyObject *engine_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"limits", "seed", NULL};
    Py_buffer limits, seed;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "y*y*", names, &limits, &seed))
        return NULL;
    engine_object *self = NULL;
    if (limits.len != sizeof(mq_limits) || seed.len != 16) {
        PyErr_SetString(PyExc_ValueError, "limits must be an mq_limits, seed 16 random bytes");
    } else {
        allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
        self = (engine_object *)allocate(type, 0);
    }
    if (self != NULL) {
        mq_limits copy;
        uint64_t words[2];
        memcpy(&copy, limits.buf, sizeof copy);
        memcpy(words, seed.buf, sizeof words);
        self->engine = mq_engine_new(&copy, words);
        self->rings = PyDict_New();
        if (self->engine == NULL || self->rings == NULL) {
            Py_CLEAR(self);
            PyErr_NoMemory();
        }
    }
    PyBuffer_Release(&limits);
    PyBuffer_Release(&seed);
    return (PyObject *)self;
}

static void engine_dealloc(PyObject *object)
{
    engine_object *self = (engine_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->engine != NULL)
        mq_engine_free(self->engine);
    mq_journal_replay_free(self->replay);
    Py_CLEAR(self->rings);
    Py_CLEAR(self->journal);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyObject *engine_address(engine_object *self, void *Py_UNUSED(closure))
{
    return PyLong_FromVoidPtr(self->engine);
}

static PyObject *counters_address(engine_object *self, void *Py_UNUSED(closure))
{
    return PyLong_FromVoidPtr(&self->engine->counters);
}

static PyObject *limits_address(engine_object *self, void *Py_UNUSED(closure))
{
    return PyLong_FromVoidPtr(&self->engine->limits);
}

#define FAST(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL
#define ONE(function) (PyCFunction)(void (*)(void))(function), METH_O
#define NONE(function) (PyCFunction)(void (*)(void))(function), METH_NOARGS

static PyMethodDef engine_methods[] = {
    {"add_ring", FAST(add_ring), "(writer, gate, logged) -> ring"},
    {"refuse", FAST(engine_refuse), "(ring, reason): its log takes no records; 0: it does again"},
    {"upstream", FAST(engine_upstream), "(ring, offset): all sinks have the records below"},
    {"upstream_lost", FAST(engine_upstream_lost), "(ring, first, end): a sink will never have these"},
    {"add_reader", ONE(add_reader), "(reader) -> ring"},
    {"remove_ring", ONE(remove_ring), "(ring)"},
    {"resume_ring", ONE(resume_ring), "(ring): the requested topic is known now"},
    {"read_producers", NONE(read_producers), "(): producer rings have records"},
    {"open", ONE(open_detached), "(listener) -> connection without a socket"},
    {"feed", FAST(feed), "(connection, data) -> bytes taken"},
    {"pull", ONE(pull), "(connection) -> bytes to send"},
    {"forget", ONE(forget), "(connection): free one without a socket, once closed"},
    {"is_open", ONE(is_open), "(connection) -> bool"},
    {"step", FAST(step), "(now_ms, now_ns) -> number of events: a poll without sockets"},
    {"events", FAST(events), "(queued=32) -> [(kind, connection, detail, data)]"},
    {"accept", FAST(engine_accept),
     "(connection, session, answer, after_journal, version, idle_max_ms, publishes_all, receives_all, "
     "window, packet_max_bytes, alias_max, tenant) -> bool"},
    {"accept_new", FAST(engine_accept_new),
     "(connection, answer, author, version, idle_max_ms, window, queue_max, drop_newest) -> session, or 0"},
    {"send", FAST(send_at_once), "(connection, data) -> bool"},
    {"send_after_journal", FAST(send_after_journal), "(connection, data) -> bool: after a sync"},
    {"close", ONE(close_connection), "(connection) -> bool"},
    {"pause", ONE(pause_connection), "(connection) -> bool"},
    {"resume", ONE(resume_connection), "(connection) -> bool"},
    {"converse", ONE(converse), "(connection) -> bool: hand over whatever comes before accept()"},
    {"drop_unconfirmed", ONE(engine_drop_unconfirmed), "(connection) -> bool: its CONNACK was not sent"},
    {"peer", ONE(engine_peer), "(connection) -> (listener, address) | None"},
    {"plain_connect", ONE(engine_plain_connect), "(packet) -> content | None"},
    {"authorize", FAST(authorize), "(connection, topic, allowed) -> bool"},
    {"publish_rules", FAST(engine_publish_rules), "(connection, rules | None) -> bool"},
    {"drop_publish", FAST(drop_publish), "(connection, reason) -> bool: of the TOPIC event"},
    {"clear_acl_cache", NONE(clear_acl_cache), "(): rules have changed"},
    {"session_open", FAST(engine_session_open),
     "(queue_max, drop_newest, owner, author, lasts) -> session"},
    {"session_client", FAST(engine_session_client), "(session, owner, author, lasts) -> bool"},
    {"retained_authors", FAST(engine_retained_authors),
     "(first, topics_max) -> ([(topic, author)], place to continue from | None)"},
    {"retained_withhold", FAST(engine_retained_withhold),
     "(topic, author, withheld) -> bool: False for another author"},
    {"session_filters", FAST(engine_session_filters), "(session, bytes) -> bool: of its subscriptions"},
    {"session_may", FAST(engine_session_may), "(session, table, more) -> bool: its owner may take more"},
    {"session_has_room", FAST(engine_session_has_room), "(session, table, more) -> bool"},
    {"owner_may", FAST(engine_owner_may), "(owner, table, more) -> bool"},
    {"owner_may_inherit", FAST(engine_owner_may_inherit),
     "(owner, table) -> bool: one that another owner gives up"},
    {"owner_refused", ONE(engine_owner_refused), "(table) -> (owner, it has) of the last refusal | None"},
    {"owners_top", FAST(engine_owners_top), "(table, count) -> [(owner, it has)], most first"},
    {"tenant_set", FAST(engine_tenant_set), "(name, limits by table, publish_rate_max) -> number"},
    {"tenants_resolve", NONE(engine_tenants_resolve), "(): after tenants were added"},
    {"tenant_use", FAST(engine_tenant_use), "(name, table, more) -> bool: False for an unknown tenant"},
    {"delayed_counted", NONE(engine_delayed_counted), "(): tenants have those from before the start"},
    {"tenant_stats", ONE(engine_tenant_stats), "(number) -> (used, refused, published, rate waits)"},
    {"session_close", ONE(engine_session_close), "(session) -> bool"},
    {"state", NONE(engine_state), "() -> {what: count or bool}: for a log line"},
    {"session_stats", ONE(engine_session_stats),
     "(session) -> (queued, in flight, delivered, dropped by cause) | None"},
    {"share_open", FAST(engine_share_open), "(queue_max, drop_newest) -> session that is a group's queue"},
    {"share_join", FAST(engine_share_join), "(queue, session, options, identifiers) -> bool"},
    {"share_leave", FAST(engine_share_leave), "(queue, session)"},
    {"subscription_ids_take", ONE(engine_subscription_ids_take),
     "(identifiers) -> number, counted for the caller"},
    {"subscription_ids_drop", ONE(engine_subscription_ids_drop), "(number)"},
    {"subscription_ids_of", ONE(engine_subscription_ids_of), "(number) -> bytes"},
    {"subscription_ids_count", NONE(engine_subscription_ids_count), "() -> how many there are"},
    {"next_log_position", ONE(engine_next_log_position), "(session) -> (ring, position) | None"},
    {"restore_records", FAST(engine_restore_records), "(session, ring, wanted, position, records) -> bool"},
    {"resume_delivery", ONE(engine_resume_delivery), "(session) -> bool"},
    {"session_keep", FAST(engine_session_keep), "(session, kept) -> bool: the journal has it from now on"},
    {"journal_open", FAST(engine_journal_open), "(writer, position, output_waits, bytes in the log alone)"},
    {"journal_close", NONE(engine_journal_close), "(): nothing is kept any more"},
    {"journal_append", ONE(engine_journal_append), "(bytes) -> bool: False if a snapshot is needed"},
    {"journal_is_short", NONE(engine_journal_is_short), "() -> bool"},
    {"journal_end", ONE(engine_journal_end), "(at_once) -> position | None: not now, or closed"},
    {"journal_sections", FAST(engine_journal_sections), "(next, bytes) -> (entries, next | None)"},
    {"journal_snapshot_saved", FAST(engine_journal_snapshot_saved),
     "(position, bytes until the next is due)"},
    {"begin_retained_save", ONE(engine_begin_retained_save), "(all): from now on, collect changes"},
    {"retained_changes", ONE(engine_retained_changes), "(bytes) -> (records, authors, True: there are more)"},
    {"add_ended_ring", ONE(engine_add_ended_ring), "(logged) -> ring that has ended"},
    {"routed_position", ONE(engine_routed_position), "(ring) -> position: what is below was routed"},
    {"block_log", ONE(engine_block_log), "(ring): its log waits for the present journal entries"},
    {"unblock_logs", NONE(engine_unblock_logs), "(): logs may take records whose entries are synced"},
    {"lowest_positions", FAST(engine_lowest_positions), "(first, count) -> (lowest positions, next or None)"},
    {"replay_begin", NONE(engine_replay_begin), "()"},
    {"replay_session", FAST(engine_replay_session), "(number, session)"},
    {"replay_ring", FAST(engine_replay_ring), "(number, ring, end, routed)"},
    {"replay_entries", ONE(engine_replay_entries), "(entries) -> bool"},
    {"replayed_position", ONE(engine_replayed_position), "(number) -> position"},
    {"replay_route", FAST(engine_replay_route), "(ring, position, records, begin) -> (begin, unknown)"},
    {"replay_resolve", ONE(engine_replay_resolve), "(session) -> unknown topic | None"},
    {"replay_refuse_topics", NONE(engine_replay_refuse_topics), "(): unknown topics stay unknown"},
    {"replay_log", FAST(engine_replay_log), "(ring, position): the log has the records below"},
    {"replay_resume_ring", FAST(engine_replay_resume_ring), "(ring, position): records below were routed"},
    {"replay_end", NONE(engine_replay_end), "() -> records that sessions wait for and nothing has"},
    {"set_ring_name", FAST(engine_set_ring_name), "(ring, ring name, epoch)"},
    {"spill_open", FAST(engine_spill_open), "(fd, epochs) -> copies found | None: it is another broker's"},
    {"spill_close", NONE(engine_spill_close), "() -> bytes of copies that sessions need: it stays as it is"},
    {"topic_add", FAST(engine_topic_add), "(name, ring, reserved, session, owner) -> topic | MQ_NO_TOPIC"},
    {"topic_find", ONE(engine_topic_find), "(name) -> topic, or MQ_NO_TOPIC"},
    {"topic_name", ONE(engine_topic_name), "(topic) -> bytes"},
    {"topics_scan", FAST(engine_topics_scan), "(filter, first, places, topics_max) -> (topics, next)"},
    {"topics_recycle", ONE(engine_topics_recycle), "(topics_max) -> number of topics that were forgotten"},
    {"topics_age", ONE(engine_topics_age), "(places) -> number of topics that were forgotten"},
    {"filter_add", FAST(engine_filter_add), "(filter, session, options): add or change a subscription"},
    {"filter_remove", FAST(engine_filter_remove), "(filter, session) -> bool"},
    {"plain_subscribe", FAST(engine_plain_subscribe), "(body, version, filters_max) -> content | None"},
    {"filters_add", FAST(engine_filters_add), "(filters, QoS of each, session) -> filters that retain"},
    {"plain_unsubscribe", FAST(engine_plain_unsubscribe), "(body, version, filters_max) -> content | None"},
    {"filters_remove", FAST(engine_filters_remove), "(filters, session) -> 1 or 0 for each that was handled"},
    {"topics_match", FAST(engine_topics_match), "(filter, branches_max) -> topics, as uint32, or None"},
    {"match_begin", FAST(engine_match_begin), "(name, session or 0) -> match"},
    {"match_step", FAST(engine_match_step), "(match, work) -> bool: it is complete"},
    {"match_sessions", ONE(engine_match_sessions), "(match) -> sessions, as uint64"},
    {"match_routes", FAST(engine_match_routes), "(match, topic, denied): add the routes of a match"},
    {"streams_set", ONE(engine_streams_set), "([(filters, rings of the partitions)]): rules of new topics"},
    {"topics_move", FAST(engine_topics_move), "(first, places) -> (moved topics, next place or None)"},
    {"topic_ring", ONE(engine_topic_ring), "(topic) -> ring of its new records"},
    {"stream_ring", FAST(engine_stream_ring), "(stream, partition, ring)"},
    {"topic_limits", FAST(engine_topic_limits), "(bytes, levels)"},
    {"session_receives", FAST(engine_session_receives), "(session, bool): no rule denies it a topic"},
    {"check_receivers", ONE(engine_check_receivers), "(bool): Python decides who may receive a topic"},
    {"routes_set", FAST(engine_routes_set), "(topics, session, options) -> int"},
    {"routes_add", FAST(engine_routes_add), "(topics, session, options) -> int: one route more"},
    {"routes_merge", FAST(engine_routes_merge), "(topics, session, options) -> int: the higher QoS stays"},
    {"routes_drop", FAST(engine_routes_drop), "(topics, session, 0) -> int"},
    {"routes_of", ONE(engine_routes_of), "(topic) -> [(session, options)]"},
    {"send_retained", FAST(engine_send_retained),
     "(session, options, filter, topics or None): send what those, or all that match, retain"},
    {"stop_retained", FAST(engine_stop_retained), "(session, filter)"},
    {"retained_arrived", ONE(engine_retained_arrived), "(session) -> bool: all are acknowledged"},
    {"queue_topics", ONE(engine_queue_topics), "(session) -> topics of what waits, as uint32"},
    {"topics_denied", FAST(engine_topics_denied), "(topics, rules, prefix) -> those that the rules deny"},
    {"queue_purge", FAST(engine_queue_purge), "(session, topics) -> how many were taken back"},
    {"queue_names", ONE(engine_queue_names), "(session) -> names of what waits without a topic"},
    {"queue_resolve_names", FAST(engine_queue_resolve_names), "(session, denied): a byte for each name"},
    {"topics_retaining", ONE(engine_topics_retaining), "(topics) -> those of them that retain something"},
    {"topics", NONE(engine_topics), "() -> all, as uint32"},
    {"routes_clear", ONE(engine_routes_clear), "(topic)"},
    {"retain", FAST(engine_retain), "(topic, payload, flags, properties, time, owner, author) -> bool"},
    {"restore_retained", FAST(engine_restore_retained),
     "(records, authors, owners, places in both) -> places in both, of a record that Python decides about"},
    {"retained_message", FAST(engine_retained_message),
     "(topic, payload_max) -> (flags, timestamp_ns, properties, payload length, payload, withheld) | None"},
    {"retained_route", ONE(engine_retained_route), "(topic) -> how many get it"},
    {"publish", FAST(engine_publish),
     "(topic, payload, flags, properties, owner, author, publisher) -> RB_*"},
    {0},
};

static PyGetSetDef engine_fields[] = {
    {"address", (getter)engine_address, NULL, "mq_engine *, while this object lives", NULL},
    {"counters_address", (getter)counters_address, NULL, "mq_counters *, while this object lives", NULL},
    {"limits_address", (getter)limits_address, NULL, "mq_limits *, while this object lives", NULL},
    {0},
};

static PyType_Slot engine_slots[] = {
    {Py_tp_doc, "The MQTT hot path: topics, routes, sessions and connections."},
    {Py_tp_new, engine_new},
    {Py_tp_dealloc, engine_dealloc},
    {Py_tp_methods, engine_methods},
    {Py_tp_getset, engine_fields},
    {0},
};

static PyType_Spec engine_spec = {"ringbuf.Engine", sizeof(engine_object), 0, Py_TPFLAGS_DEFAULT,
                                  engine_slots};

int mq_install(const char *name)
{
    PyGILState_STATE state = PyGILState_Ensure(); /* cffi has released it */
    int result = 0;
    if (engine_type == NULL) {
        PyObject *module = PyImport_AddModule(name);
        engine_type = module == NULL ? NULL : (PyTypeObject *)PyType_FromSpec(&engine_spec);
        result = engine_type == NULL ? -1 : PyModule_AddObjectRef(module, "Engine", (PyObject *)engine_type);
        if (result != 0) {
            Py_CLEAR(engine_type);
            PyErr_Clear();
        }
    }
    PyGILState_Release(state);
    return result;
}
