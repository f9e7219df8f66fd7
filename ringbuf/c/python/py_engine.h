/* SPDX-License-Identifier: Apache-2.0
 *
 * Common parts of the type Engine: the object, its arguments, the methods about topics and sessions.
 */
#ifndef BRIM_PY_ENGINE_H
#define BRIM_PY_ENGINE_H

#define PY_SSIZE_T_CLEAN /* "#" of Py_BuildValue takes a Py_ssize_t; before Python.h */
#include "python/py_ring.h"
#include "mqtt/mqtt.h"
#include "mqtt/in/reason_codes.h"

typedef struct engine_object {
    PyObject_HEAD mq_engine *engine;
    PyObject *rings;   /* ring -> Writer or Reader, which keeps its memory mapped */
    PyObject *journal; /* Writer of the open journal */
    mq_journal_replay *replay;
} engine_object;

typedef PyObject *const *args_t;

/* A view that is released at the end of its block.  The release and view_of() may run Python (the buffer of a
 * Python class), and this may use the engine.  Views are therefore taken before any look-up, and results of
 * look-ups are not used after the block. */
#define HELD_VIEW __attribute__((cleanup(bytes_done))) bytes_view

/* Get the bytes of an object, at most INT32_MAX: lengths have 32 bits here.  `out` is preset with zeros. */
static inline int view_of(PyObject *object, bytes_view *out)
{
    if (bytes_of(object, out) != 0)
        return -1;
    if (out->length <= INT32_MAX)
        return 0;
    PyErr_Format(PyExc_ValueError, "%zd bytes exceed %d", out->length, INT32_MAX);
    return -1;
}

static inline int take(Py_ssize_t count, Py_ssize_t wanted)
{
    if (count == wanted)
        return 0;
    PyErr_Format(PyExc_TypeError, "%zd arguments are taken, %zd were given", wanted, count);
    return -1;
}

static inline int unsigned_of(PyObject *object, unsigned long long most, unsigned long long *out)
{
    *out = PyLong_AsUnsignedLongLong(object);
    if (*out == (unsigned long long)-1 && PyErr_Occurred())
        return -1;
    if (*out > most) {
        PyErr_Format(PyExc_ValueError, "%llu exceeds %llu", *out, most);
        return -1;
    }
    return 0;
}

static inline int topic_from(const engine_object *self, PyObject *object, mq_topic **out)
{
    unsigned long long index;
    if (unsigned_of(object, UINT32_MAX, &index) != 0)
        return -1;
    *out = mq_slab_at(&self->engine->topics, (uint32_t)index);
    if (*out != NULL && (*out)->item.generation & 1)
        return 0;
    PyErr_Format(PyExc_ValueError, "there is no topic %llu", index);
    return -1;
}

/* Returns 0 with *out NULL for a stale handle. */
static inline int connection_from(const engine_object *self, PyObject *object, mq_connection **out)
{
    unsigned long long handle;
    if (unsigned_of(object, UINT64_MAX, &handle) != 0)
        return -1;
    *out = mq_slab_get(&self->engine->connections, handle);
    return 0;
}

static inline int live_from(const engine_object *self, PyObject *object, mq_connection **out)
{
    int result = connection_from(self, object, out);
    if (result == 0 && *out != NULL && (*out)->stop == MQ_STOP_CLOSING)
        *out = NULL;
    return result;
}

static inline int session_from(const engine_object *self, PyObject *object, mq_session **out)
{
    unsigned long long handle;
    if (unsigned_of(object, UINT64_MAX, &handle) != 0)
        return -1;
    *out = mq_slab_get(&self->engine->sessions, handle);
    return 0;
}

/* py_journal.c */
PyObject *engine_session_keep(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_journal_open(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_journal_close(engine_object *self, PyObject *argument);
PyObject *engine_journal_append(engine_object *self, PyObject *argument);
PyObject *engine_journal_is_short(engine_object *self, PyObject *argument);
PyObject *engine_journal_end(engine_object *self, PyObject *argument);
PyObject *engine_journal_sections(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_journal_snapshot_saved(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_begin_retained_save(engine_object *self, PyObject *argument);
PyObject *engine_retained_changes(engine_object *self, PyObject *argument);
PyObject *engine_add_ended_ring(engine_object *self, PyObject *argument);
PyObject *engine_routed_position(engine_object *self, PyObject *argument);
PyObject *engine_block_log(engine_object *self, PyObject *argument);
PyObject *engine_unblock_logs(engine_object *self, PyObject *argument);
PyObject *engine_lowest_positions(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_replay_begin(engine_object *self, PyObject *argument);
PyObject *engine_replay_session(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_replay_ring(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_replay_entries(engine_object *self, PyObject *argument);
PyObject *engine_replayed_position(engine_object *self, PyObject *argument);
PyObject *engine_replay_route(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_replay_resolve(engine_object *self, PyObject *argument);
PyObject *engine_replay_refuse_topics(engine_object *self, PyObject *argument);
PyObject *engine_replay_log(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_replay_resume_ring(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_replay_end(engine_object *self, PyObject *argument);

/* py_engine_state.c */
PyObject *engine_state(engine_object *self, PyObject *);

/* py_durability.c */
PyObject *engine_refuse(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_upstream(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_upstream_lost(engine_object *self, args_t args, Py_ssize_t count);

/* py_quotas.c */
/* Owner with an added reference.  NULL without an exception: the key is empty, or memory is short. */
mq_owner *owner_from(engine_object *self, PyObject *key);
mq_author *author_from(mq_owner *owner, PyObject *facts); /* likewise */
/* Set the client of a session by its owner, author and `lasts`.  0, or -1 with an exception. */
int session_client(engine_object *self, mq_session *session, args_t args);
PyObject *engine_session_client(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_retained_authors(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_retained_withhold(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_session_filters(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_session_may(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_session_has_room(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_owner_may(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_owner_may_inherit(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_owner_refused(engine_object *self, PyObject *argument);
PyObject *engine_owners_top(engine_object *self, args_t args, Py_ssize_t count);

/* py_tenants.c */
PyObject *engine_tenant_set(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_tenants_resolve(engine_object *self, PyObject *ignored);
PyObject *engine_tenant_use(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_delayed_counted(engine_object *self, PyObject *ignored);
PyObject *engine_tenant_stats(engine_object *self, PyObject *argument);

/* py_queue.c */
PyObject *engine_send_retained(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_stop_retained(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_retained_arrived(engine_object *self, PyObject *handle);
PyObject *engine_queue_topics(engine_object *self, PyObject *argument);
PyObject *engine_topics_denied(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_queue_purge(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_queue_names(engine_object *self, PyObject *argument);
PyObject *engine_queue_resolve_names(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_topics_retaining(engine_object *self, PyObject *argument);

/* py_connect.c */
PyObject *engine_plain_connect(engine_object *self, PyObject *packet);
PyObject *engine_accept(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_drop_unconfirmed(engine_object *self, PyObject *handle);
PyObject *engine_accept_new(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_peer(engine_object *self, PyObject *handle);
PyObject *engine_publish_rules(engine_object *self, args_t args, Py_ssize_t count);

/* py_routing.c */
PyObject *engine_filter_add(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_filter_remove(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_plain_subscribe(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_filters_add(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_plain_unsubscribe(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_filters_remove(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_topics_match(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_match_begin(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_match_step(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_match_sessions(engine_object *self, PyObject *argument);
PyObject *engine_match_routes(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_streams_set(engine_object *self, PyObject *argument);
PyObject *engine_stream_ring(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_topic_limits(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_session_receives(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_check_receivers(engine_object *self, PyObject *argument);

/* py_share.c */
PyObject *engine_share_open(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_share_join(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_share_leave(engine_object *self, args_t args, Py_ssize_t count);

/* py_spill.c */
PyObject *engine_set_ring_name(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_spill_open(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_spill_close(engine_object *self, PyObject *argument);

/* py_topics.c */
PyObject *engine_session_open(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_session_close(engine_object *self, PyObject *argument);
PyObject *engine_session_stats(engine_object *self, PyObject *argument);
PyObject *engine_subscription_ids_take(engine_object *self, PyObject *argument);
PyObject *engine_subscription_ids_drop(engine_object *self, PyObject *argument);
PyObject *engine_subscription_ids_of(engine_object *self, PyObject *argument);
PyObject *engine_subscription_ids_count(engine_object *self, PyObject *argument);
PyObject *engine_next_log_position(engine_object *self, PyObject *argument);
PyObject *engine_restore_records(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_resume_delivery(engine_object *self, PyObject *argument);
PyObject *engine_topic_add(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_topic_find(engine_object *self, PyObject *argument);
PyObject *engine_topic_name(engine_object *self, PyObject *argument);
PyObject *engine_topics_scan(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_topics(engine_object *self, PyObject *argument);
PyObject *engine_topics_recycle(engine_object *self, PyObject *argument);
PyObject *engine_topics_age(engine_object *self, PyObject *argument);
PyObject *engine_topics_move(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_topic_ring(engine_object *self, PyObject *argument);
PyObject *engine_routes_set(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_routes_add(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_routes_merge(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_routes_drop(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_routes_clear(engine_object *self, PyObject *argument);
PyObject *engine_routes_of(engine_object *self, PyObject *argument);
PyObject *engine_publish(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_retain(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_restore_retained(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_retained_message(engine_object *self, args_t args, Py_ssize_t count);
PyObject *engine_retained_route(engine_object *self, PyObject *argument);

#endif
