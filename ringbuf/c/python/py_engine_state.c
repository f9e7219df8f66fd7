/* SPDX-License-Identifier: Apache-2.0
 *
 * State of an engine for a log line about a failure (see py_engine.c).
 */
#include "python/py_engine.h"

PyObject *engine_state(engine_object *self, PyObject *Py_UNUSED(ignored))
{
    const mq_engine *engine = self->engine;
    const mq_journal *journal = &engine->journal;
    unsigned long long stops[MQ_STOP_CLOSING + 1] = {0}, journal_ring = 0;
    for (uint32_t i = 0; i < engine->connections.created; i++) {
        const mq_connection *connection = mq_slab_at(&engine->connections, i);
        if (connection->item.generation & 1)
            stops[connection->stop]++;
    }
    if (journal->writer != NULL)
        journal_ring = journal->writer->tail - journal->keep_from;
    return Py_BuildValue("{sKsKsKsKsKsKsKsKsKsKsKsKsKsIsIsIsNsNsNsNsNsN}", "running", stops[MQ_RUN], "python",
                         stops[MQ_STOP_PYTHON], "deferred", stops[MQ_STOP_DEFERRED], "full",
                         stops[MQ_STOP_FULL], "acks", stops[MQ_STOP_ACKS], "out", stops[MQ_STOP_OUT], "rate",
                         stops[MQ_STOP_RATE], "input", stops[MQ_STOP_INPUT], "closing",
                         stops[MQ_STOP_CLOSING], "waiting", (unsigned long long)engine->pulse.waiting,
                         "events", (unsigned long long)(engine->event_next - engine->event_taken),
                         "events_taken", (unsigned long long)(engine->event_taken - engine->event_done),
                         "journal_bytes", journal_ring, "journal_collected", journal->used, "waits_for_sync",
                         engine->sync_waiters.count, "blocked_rings", engine->blocked_rings, "journal_full",
                         PyBool_FromLong(journal->full), "journal_stalled", PyBool_FromLong(journal->stalled),
                         "journal_torn", PyBool_FromLong(journal->torn), "snapshot_needed",
                         PyBool_FromLong(mq_journal_needs(engine)), "snapshot_requested",
                         PyBool_FromLong(journal->request.sent), "retained_save_needed",
                         PyBool_FromLong(engine->retained_due));
}
