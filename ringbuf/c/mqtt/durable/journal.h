/* SPDX-License-Identifier: Apache-2.0
 *
 * The journal: changes of kept sessions, so that a restart restores them exactly.
 *
 * The journal is a ring of its own with one writer, this engine.  A record with the key "h" has entries of
 * the hot path.  A record with the key "n" has a record of Python (edge/session_store/journal_records.py).
 * A snapshot has the same format of entries.  Snapshot and journal together give the waiting and
 * in-flight messages of each kept session.
 *
 * Entry: words of 32 bits, little-endian, unaligned.  The first is kind << 24 | number.  The number is that
 * of a session (the lower half of its handle) unless stated otherwise.  `where` is two words: ring << 52 |
 * position / 32; all ones: no position.
 *
 *   kind       number   then
 *   ROUTED     count    where; then for each session that it was queued for: options << 24 | session
 *   SENT       session  lower word of where: the oldest queued entry was sent, with the next identifier
 *   POPPED     session  lower word of where: the oldest queued entry was dropped, or needs no acknowledgement
 *   SENT_ELSE  session  where, options: as SENT, but the entry came from a retained message or a group
 *   ACKED      session  identifier: its exchange has ended
 *   RELEASED   session  identifier: PUBREC was received
 *   RECEIVED   session  where, identifier: of QoS 2; valid if the ring has a record there
 *   FREED      session  identifier: PUBREL was received, or the message is refused or lost
 *   MARK       ring     position in bytes, two words: all records below have been routed
 *   GONE       group    where: a member has finished the record, or it was sent to the member at QoS 2
 *   WINDOW     session  four words sent_first and sent_next, two counts;
 *                       then for each number in flight: where, options;
 *                       then for each QoS 2 identifier received: a word.
 *                       Resets the session
 *   QUEUED     session  count; then for each: where, options.  Queued after the existing entries
 *   RECEIPT    session  ring << 52 | offset of the record, two words; identifier: after RECEIVED or WINDOW,
 *                       of QoS 2, as long as the sinks may lose its record (receipts.c)
 *
 * Order.  Entries are in the order of the events.  They are collected, and appended before any dependent
 * output is sent.  RECEIVED is appended before its record.  Records after the last
 * ROUTED or MARK of their ring were stored just before the end.  The restart routes them.
 *
 * No entry is written while no session is kept.  A session that is not kept costs one check of a byte.
 *
 * Rule for changes: raise STATE_VERSION in edge/session_store/journal_records.py, and keep reading the
 * version before.
 */
#ifndef BRIM_JOURNAL_H
#define BRIM_JOURNAL_H

#define MQ_JOURNAL_PIECE_BYTES 65536u /* approximate size of the entries in one record */
#define MQ_JOURNAL_COUNT_MAX 4096u    /* sessions in one ROUTED, or entries in one QUEUED */
#define MQ_JOURNAL_NO_WORD UINT32_MAX

enum {
    MQ_J_ROUTED = 1,
    MQ_J_SENT,
    MQ_J_POPPED,
    MQ_J_SENT_ELSE,
    MQ_J_ACKED,
    MQ_J_RELEASED,
    MQ_J_RECEIVED,
    MQ_J_FREED,
    MQ_J_MARK,
    MQ_J_GONE,
    MQ_J_WINDOW,
    MQ_J_QUEUED,
    MQ_J_RECEIPT
};

typedef struct mq_journal {
    rb_writer *writer; /* NULL: no journal */
    uint8_t *at;       /* entries that are collected, but not yet in the ring */
    uint32_t used, capacity;
    uint32_t open; /* place + 1 in `at` of the ROUTED that may be extended; 0: none */
    uint64_t open_where;
    uint64_t keep_from;   /* a restart needs the ring from this position on */
    uint64_t in_log;      /* bytes of that which may be only in the ring's log; 0: no log */
    uint64_t due_at;      /* position at which a snapshot is needed */
    uint64_t waits_since; /* ms: begin of the time without room; 0: there is room */
    mq_request request;   /* request for a snapshot: sent, or one is being written */
    bool full;            /* no room until a snapshot or a sync of its log */
    bool stalled;         /* the last flush left entries outside the ring */
    bool torn;            /* an event is missing: only a snapshot repairs that */
    bool torn_since;      /* likewise, since the begin of the snapshot in progress */
    bool replaying;       /* a restart repeats recorded events */
    bool output_waits;    /* a log syncs it, and dependent output waits for that: output_barrier.c */
} mq_journal;

/* journal.c.  Each function adds an entry, if a journal is open; the caller has checked that the session is
 * kept. */
void mq_journal_routed(mq_engine *engine, const mq_session *session, const mq_entry *entry);
void mq_journal_popped(mq_engine *engine, const mq_session *session, const mq_entry *entry);
void mq_journal_sent(mq_engine *engine, const mq_session *session, const mq_entry *entry, bool sent,
                     bool queued);
void mq_journal_word(mq_engine *engine, uint32_t kind, const mq_session *session, uint32_t word);
/* of a member's entry, with MQ_OPTION_SHARED */
void mq_journal_gone(mq_engine *engine, const mq_entry *entry);
/* False: the entries have no room, and leave no trace; their record must not be stored.  `receipt` NULL:
 * none. */
bool mq_journal_received(mq_engine *engine, const mq_session *session, uint64_t where, uint16_t identifier,
                         const mq_receipt *receipt);
void mq_journal_mark(mq_engine *engine, uint32_t ring);
/* The record at `where` is routed: a restart, which does not know its publisher, must not route it again. */
void mq_journal_passed(mq_engine *engine, uint64_t where);
/* Append the collected entries.  False: no room now, and no output may be sent. */
bool mq_journal_flush(mq_engine *engine);
/* Append a record of Python.  False: no room, or too long. */
bool mq_journal_append_record(mq_engine *engine, const void *bytes, uint32_t length);
/* Bytes of the complete entry at `at`; 0 if it exceeds `left` or is invalid. */
uint32_t mq_journal_entry_bytes(const uint8_t *at, uint64_t left);
/* Entries with the state of kept sessions, from session *next on, up to about `bytes_max` bytes.  *next is
 * UINT32_MAX after the last session.  Caller frees.  NULL: no memory. */
uint8_t *mq_journal_sections(mq_engine *engine, uint32_t *next, uint64_t bytes_max, uint64_t *length);
void mq_journal_section(mq_engine *engine, const mq_session *session); /* written to the journal itself */
void mq_journal_open(mq_engine *engine, rb_writer *writer, uint64_t from, bool output_waits, uint64_t in_log);
void mq_journal_close(mq_engine *engine);
/* Prepare for a snapshot with all events so far, including collected entries outside the ring: these are
 * discarded, and no output is sent before the snapshot is written.  False: not now (unless `at_once`); a
 * snapshot is requested again. */
bool mq_journal_end(mq_engine *engine, bool at_once);
/* true if a snapshot is needed in the current state; called in each round */
bool mq_journal_needs(const mq_engine *engine);
/* True if half of the journal is in use and only a snapshot makes room.  The other half is for
 * acknowledgements and records; work of Python (edge/broker/deferred.py) waits.  No socket is read while the
 * journal is full. */
bool mq_journal_is_short(const mq_engine *engine);
void mq_journal_snapshot_saved(mq_engine *engine, uint64_t from, uint64_t due_bytes);

/* journal_replay.c */
typedef struct mq_journal_replay mq_journal_replay;
typedef struct mq_replayed_ring {
    uint32_t ring; /* current number */
    uint64_t end;    /* end of the stored records */
    uint64_t routed; /* records below were routed when the ring got its number */
} mq_replayed_ring;
typedef struct mq_unknown { /* a topic that Python must add first */
    const uint8_t *name;
    uint32_t length;
} mq_unknown;
/* Begins a replay, and suspends the limits of queues until mq_journal_replay_over(). */
mq_journal_replay *mq_journal_replay_new(mq_engine *engine); /* NULL: no memory */
void mq_journal_replay_over(mq_engine *engine);
void mq_journal_replay_free(mq_journal_replay *replay);
bool mq_journal_replay_session(mq_journal_replay *replay, uint32_t number, uint64_t handle);
void mq_journal_replay_ring(mq_journal_replay *replay, uint32_t number, const mq_replayed_ring *ring);
void mq_journal_replay_refuse(mq_journal_replay *replay); /* unknown topics stay unknown */
/* Number of entries so far whose record was not found. */
uint64_t mq_journal_replay_lost(const mq_journal_replay *replay);
uint64_t mq_journal_replay_mark(const mq_journal_replay *replay, uint32_t number);
bool mq_journal_replay_entries(mq_engine *engine, mq_journal_replay *replay, const uint8_t *bytes,
                               uint64_t length);
/* Turn the replayed state of `session` into its current state.  False: topic *out is unknown; add it and call
 * again. */
bool mq_journal_replay_resolve(mq_engine *engine, mq_journal_replay *replay, mq_session *session,
                               mq_unknown *out);
/* Route the records of `bytes`, which are at `position` of `ring`, from `*from` on; advances *from. */
bool mq_journal_replay_route(mq_engine *engine, const mq_journal_replay *replay, uint32_t ring,
                             uint64_t position, const uint8_t *bytes, uint64_t length, uint64_t *from,
                             mq_unknown *out);

#endif
