/* SPDX-License-Identifier: Apache-2.0
 *
 * The journal: what happens to sessions that are kept, so that a restart finds them as they were.
 *
 * A ring of its own, with one writer, this engine.  A record of it with the key "h" holds entries of the hot
 * path, one with the key "n" what Python notes (edge/state/notes.py).  Together with a checkpoint, which is
 * written in the same entries, they say what each kept session waits for and what is in flight.
 *
 * Entry: words of 32 bits, little-endian, unaligned.  The first is kind << 24 | number; the number is that of
 * a session (the lower half of its handle) unless said otherwise.  `where` is two words: source << 52 |
 * position / 32, all ones for nowhere.
 *
 *   kind       number   then
 *   ROUTED     count    where, and for each session that it was queued for: options << 24 | session
 *   SENT       session  lower word of where: what is queued first went out, and has the next identifier
 *   POPPED     session  lower word of where: what is queued first was given up, or needs no acknowledgement
 *   SENT_ELSE  session  where, options: as SENT, of what was not in this queue
 *   ACKED      session  identifier: its exchange is at its end
 *   RELEASED   session  identifier: PUBREC has come
 *   RECEIVED   session  where, identifier: of QoS 2; counts if the ring has a record there
 *   FREED      session  identifier: PUBREL has come, or it was not stored
 *   MARK       source   position in bytes, two words: all that is below has been routed
 *   GONE       group    where: a member is done with it, or has it for good
 *   WINDOW     session  four words sent_first and sent_next, two counts; then for each number in flight
 * where, options; for each QoS 2 identifier received a word.  Begins a session anew QUEUED     session count,
 * and for each where, options: queued behind what is
 *
 * Order.  Entries stand in the order in which things happened.  They are collected, and appended before
 * anything is sent that depends on them; RECEIVED is appended before its record is.  So a record that no
 * entry knows of was stored just before the end, and is routed by the restart: of each source, what follows
 * the last ROUTED or MARK.
 *
 * Nothing is written while no session is kept.  What that costs a session that is not: a look at one byte.
 *
 * Rule for change: raise STATE_VERSION in edge/state/notes.py, and keep reading the version before.
 */
#ifndef BRIM_JOURNAL_H
#define BRIM_JOURNAL_H

#define MQ_JOURNAL_PIECE_BYTES 65536u /* entries in one record, about */
#define MQ_JOURNAL_COUNT_MAX 4096u    /* in one ROUTED or QUEUED */
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
    MQ_J_QUEUED
};

typedef struct mq_journal {
    rb_writer *writer; /* NULL: nothing is kept */
    uint8_t *at;       /* collected, and not yet in the ring */
    uint32_t used, room;
    uint32_t open; /* of the ROUTED that may go on: its place in `at` + 1; 0: none may */
    uint64_t open_where;
    uint64_t keep_from;   /* position in the ring from which on a restart needs it */
    uint64_t in_log;      /* so much of that may be in the ring's log alone; 0: it has none */
    uint64_t due_at;      /* where a checkpoint is needed */
    uint64_t waits_since; /* ms: since when there is no room; 0: there is */
    mq_request request;   /* for a checkpoint: made, or one is being written */
    bool full;            /* no room before a checkpoint, or a sync of its log */
    bool stalled;         /* the last flush did not bring all into the ring */
    bool torn;            /* something that happened is not in it: only a checkpoint mends that */
    bool torn_since;      /* and not the one that is under way */
    bool replaying;       /* a restart does again what was done */
    bool vows;            /* a log syncs it, and who is told of what it has waits for that: vows.c */
} mq_journal;

/* journal.c.  Each adds an entry, if a journal is open; who calls has seen that the session is kept. */
void mq_journal_routed(mq_engine *engine, const mq_session *session, const mq_entry *entry);
void mq_journal_popped(mq_engine *engine, const mq_session *session, const mq_entry *entry);
void mq_journal_sent(mq_engine *engine, const mq_session *session, const mq_entry *entry, bool sent,
                     bool queued);
void mq_journal_word(mq_engine *engine, uint32_t kind, const mq_session *session, uint32_t word);
void mq_journal_gone(mq_engine *engine, const mq_entry *entry); /* of a member, tagged MQ_TAG_SHARED */
/* False: it could not be written, and its record must not be stored. */
bool mq_journal_received(mq_engine *engine, const mq_session *session, uint64_t where, uint16_t identifier);
void mq_journal_mark(mq_engine *engine, uint32_t source);
/* Appends what was collected.  False: there is no room now, and nothing may be sent. */
bool mq_journal_flush(mq_engine *engine);
bool mq_journal_note(mq_engine *engine, const void *bytes, uint32_t length); /* false: no room, or too long */
/* Bytes of the whole entry at `at`, or 0: `left` has not all of it, or it is none. */
uint32_t mq_journal_entry_bytes(const uint8_t *at, uint64_t left);
/* Entries that say what kept sessions have, from session *next on, up to about `most` bytes; *next is
 * UINT32_MAX when that was all.  Caller frees.  NULL: no memory. */
uint8_t *mq_journal_sections(mq_engine *engine, uint32_t *next, uint64_t most, uint64_t *length);
void mq_journal_section(mq_engine *engine, const mq_session *session); /* into the journal itself */
void mq_journal_open(mq_engine *engine, rb_writer *writer, uint64_t from, bool vows, uint64_t in_log);
void mq_journal_close(mq_engine *engine);
/* A checkpoint is about to say all that has happened, what was collected and is not in the ring, too: that is
 * forgotten, and nothing is sent before the checkpoint is there.  False: not now, if it need not be at once;
 * one is requested again. */
bool mq_journal_end(mq_engine *engine, bool at_once);
bool mq_journal_needs(const mq_engine *engine); /* a checkpoint: by what is so now, on each round */
/* True: half of the journal is in use, and only a checkpoint makes room.  The rest is for acknowledgements
 * and records; work of Python (edge/pending.py) waits.  No socket is read while the journal is full. */
bool mq_journal_is_short(const mq_engine *engine);
void mq_journal_checkpointed(mq_engine *engine, uint64_t from, uint64_t due_bytes);

/* journal_replay.c */
typedef struct mq_restoring mq_restoring;
typedef struct mq_restored_source {
    uint32_t source; /* number of today */
    uint64_t end;    /* what was stored ends there */
    uint64_t routed; /* what is below was routed when it got its number */
} mq_restored_source;
typedef struct mq_unknown { /* a topic that Python must name first */
    const uint8_t *name;
    uint32_t length;
} mq_unknown;
mq_restoring *mq_restoring_new(mq_engine *engine); /* NULL: no memory.  Limits of queues do not hold */
void mq_restoring_over(mq_engine *engine);         /* they do again */
void mq_restoring_free(mq_restoring *restoring);
bool mq_restoring_session(mq_restoring *restoring, uint32_t number, uint64_t handle);
void mq_restoring_source(mq_restoring *restoring, uint32_t number, const mq_restored_source *source);
void mq_restoring_refuse(mq_restoring *restoring); /* topics that are not known stay so */
uint64_t mq_restoring_lost(const mq_restoring *restoring); /* entries whose record nothing has, so far */
uint64_t mq_restoring_mark(const mq_restoring *restoring, uint32_t number);
bool mq_restoring_batch(mq_engine *engine, mq_restoring *restoring, const uint8_t *bytes, uint64_t length);
/* Makes of what was restored for `session` what it would be now.  False: *out is not known; call again. */
bool mq_restoring_settle(mq_engine *engine, mq_restoring *restoring, mq_session *session, mq_unknown *out);
/* Routes the records of `bytes`, which stand at `position` of `source`, from `*from` on; moves *from. */
bool mq_restoring_route(mq_engine *engine, const mq_restoring *restoring, uint32_t source, uint64_t position,
                        const uint8_t *bytes, uint64_t length, uint64_t *from, mq_unknown *out);

#endif
