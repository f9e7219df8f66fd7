/* SPDX-License-Identifier: Apache-2.0
 *
 * The writer and reader of one ring, for C.  Both are private memory of their process; only the structures of
 * layout.h are shared.  Neither allocates.  System calls only wake sleepers (base/eventcount.h) and, in
 * wait.c, sleep.
 *
 * Only one thread at a time may use a writer or a reader.  py_module.c ensures this by the GIL, the MQTT loop
 * by its thread.
 */
#ifndef BRIM_RING_H
#define BRIM_RING_H

#include <stdbool.h>

#include "base/eventcount.h"
#include "ring/log_wakeup.h"
#include "ring/layout.h"
#include "ring/commit_index.h"

struct rb_writer {
    rb_header *header;
    uint8_t *data;
    rb_cursors *cursors; /* hostile; never NULL */
    rb_cursors *local_cursors; /* slots of readers in this process: private memory; never NULL */
    uint64_t capacity, mask, chunk;
    uint64_t tail, offset;  /* position and offset of the next record */
    uint64_t reserve;       /* blocking readers permitted writing up to here: header->granted */
    _Atomic uint64_t blocking_slots; /* bits of slots of the cursor file whose readers may block the writer;
                                        other threads admit and evict */
    bool only_admitted;     /* blocking_slots has only slots that were admitted */
    uint64_t permitted; /* permitted end, valid while the next three are unchanged */
    uint64_t joined, local_joined, blocking_seen; /* as at the last check: blocking_slots_changed() */
    uint64_t end_count;
    uint64_t indexed; /* chunks that begin below this position have their index entry */
    uint64_t newest_ns, plain_from; /* of the committed records: see rb_step */
    uint64_t claim_ns;              /* timestamp of the claim under way */
    uint32_t epoch, crc_seed;
    uint32_t claimed;        /* payload position of the claim under way, 0: none */
    uint64_t claim_at;       /* its position */
    uint64_t claim_bytes;    /* its payload bytes */
    uint64_t largest;        /* longest record with its header, capacity / 4 */
    _Atomic(rb_wakeup *) wakeup; /* signalled at each publish, or NULL */
    uint32_t wakeup_index;
    _Atomic(rb_commit_index *) commit_index; /* filled for a follower, or NULL */
};

/* Take over the ring at `memory` (`bytes` long, already inspected): a new one, or one whose writer died.
 * Recovery continues from `end` over records committed after it.  The caller has made sure that no other
 * writer is alive.  Other processes may still change the file, so the header is checked against `bytes`
 * again: RB_CORRUPT. */
int rb_writer_open(rb_writer *writer, void *memory, uint64_t bytes, void *cursors, void *local_cursors);

typedef struct rb_key {
    const void *bytes;
    uint32_t length;
    uint32_t hash;          /* rb_crc32c(0, bytes, length) */
    const void *properties; /* wire form with its length first, or NULL */
    uint32_t properties_length;
} rb_key;

/* Claim room for a payload of `length` bytes: writes header, key and properties, and sets *payload.  Returns
 * RB_OK, RB_FULL, RB_TOO_LARGE, RB_PENDING. */
int rb_claim(rb_writer *writer, const rb_key *key, uint64_t length, uint16_t flags, uint64_t timestamp_ns,
             uint8_t **payload);
/* Turn the claim into a record of `actual` payload bytes, at most the claimed length.  Its offset is
 * writer->offset before the call.  `checked`: the checksum covers the payload.  The caller must then call
 * rb_announce_end(), at once or after a batch. */
void rb_commit(rb_writer *writer, uint64_t actual, bool checked);
void rb_abort(rb_writer *writer);
/* Publish the end and wake sleepers. */
void rb_announce_end(rb_writer *writer);

/* rb_claim + copy + rb_commit(checked), without rb_announce_end. */
int rb_append(rb_writer *writer, const rb_key *key, const void *payload, uint64_t length, uint16_t flags,
              uint64_t timestamp_ns);

static inline const rb_record *rb_writer_record(const rb_writer *writer, uint64_t position)
{
    return (const rb_record *)(writer->data + (position & writer->mask));
}

/* True if the record at `position` is not yet released for overwriting.  For code that keeps positions. */
static inline bool rb_writer_keeps(const rb_writer *writer, uint64_t position)
{
    return writer->reserve <= position + writer->capacity;
}

struct rb_reader {
    const rb_header *header;
    const uint8_t *data;
    rb_slot *slot;              /* owned until close; NULL for a reader without a slot */
    _Atomic uint64_t *sleepers; /* word with this reader's sleep bit; NULL without a slot */
    uint64_t sleeper_bit;
    _Atomic uint64_t *joined; /* count of readers that were placed by a seek */
    uint64_t capacity, mask, chunk;
    uint64_t cursor, offset; /* the next record's */
    uint64_t released;       /* blocking reader: everything below is released; plain: the cursor */
    uint64_t stored_released; /* value of `released` that is stored in the slot */
    uint64_t lost;           /* records, in all */
    uint32_t epoch, crc_seed;
    const rb_commit_index *commit_index; /* commit index of a writer in this process, or NULL */
    bool blocks_writer;
    bool closed; /* the slot may belong to another reader: do not touch it */
    bool verify; /* check each record's checksum: for rings that other processes write */
    bool for_log; /* reads committed records even if others see only durable ones */
};

typedef struct rb_view {
    rb_record header; /* a copy; lengths already checked against the ring */
    rb_parts parts;
    const uint8_t *bytes; /* the record in the ring */
    uint64_t position;
} rb_view;

/* Open a reader at the end of the ring.  `memory` has `bytes`, header included, and has been inspected.  Its
 * writer may be hostile, so the header is checked against `bytes` again: RB_CORRUPT.  `slots` has slot
 * number `slot`: the cursor file, or the writer's `local_cursors`.  The caller has reserved the slot.
 * slot < 0: a reader without a slot, which cannot block the writer and polls instead of sleeping. */
int rb_reader_open(rb_reader *reader, const void *memory, uint64_t bytes, rb_cursors *slots, int slot,
                   bool blocks_writer);
void rb_reader_close(rb_reader *reader);

/* Read the record at the cursor and move the cursor past it.  Returns RB_OK, RB_EMPTY, RB_OVERRUN (the cursor
 * now stands at the oldest record and reader->lost has grown), RB_EVICTED, RB_CORRUPT. */
int rb_read(rb_reader *reader, rb_view *out);
/* Result that rb_read() would return, without changing anything.  A thread may wait with it while another
 * closes the reader. */
int rb_peek(const rb_reader *reader);
/* True if the bytes read at `position` are still valid.  The fence pairs with the last fence in
 * reserve_try(). */
static inline bool rb_reader_holds(const rb_reader *reader, uint64_t position)
{
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&reader->header->granted, memory_order_relaxed) <=
           position + reader->capacity;
}
/* Get ranges from the reader's cursor on: at most `ranges_max` ranges, about limit_bytes together, at least
 * one record if the ring has one.  Moves the read cursor past them.  A blocking reader holds them until
 * rb_reader_release().  Returns the number of ranges, or RB_OVERRUN (the cursor then stands at the oldest
 * record), RB_EVICTED, RB_CORRUPT. */
int rb_reader_ranges(rb_reader *reader, uint64_t limit_bytes, rb_range *out, int ranges_max);

/* Release everything below `position`. */
void rb_reader_release(rb_reader *reader, uint64_t position);

/* skip_damage.c.  Move the cursor, after RB_CORRUPT or of a stuck reader, to the next record that verifies,
 * or to the end.  Skipped records count as lost.  Returns RB_OVERRUN, or RB_EMPTY if no record follows. */
int rb_reader_skip_damage(rb_reader *reader);

/* Store the reader's progress in its slot: at once, or lazily once per chunk. */
void rb_reader_store_progress(rb_reader *reader, uint64_t released);
void rb_reader_store_progress_lazily(rb_reader *reader, uint64_t released);

/* Move to the oldest record that can be found: the first one of the oldest chunk that is fully retained.  Up
 * to a chunk of older records may still be valid and readable for readers that stand there, but no index
 * entry leads to them. */
void rb_seek_oldest(rb_reader *reader);
void rb_seek_latest(rb_reader *reader);
/* Returns RB_EMPTY if `offset` is beyond the end, RB_OVERRUN if it is before the oldest record that can be
 * found; the cursor then stands at that end of the ring. */
int rb_seek_offset(rb_reader *reader, uint64_t offset);
void rb_seek_time(rb_reader *reader, uint64_t timestamp_ns); /* to the first record at or after it, or end */

/* Returns RB_OK if a claim would succeed now; otherwise RB_FULL, RB_TOO_LARGE, RB_PENDING. */
int rb_can_claim(rb_writer *writer, uint64_t length, uint32_t prefix);

/* Wake sleeping readers.  Several threads may call this. */
void rb_readers_wake(rb_header *header, rb_cursors *local_cursors, rb_cursors *cursors);
static inline void rb_readers_notify(rb_header *header, rb_cursors *local_cursors, rb_cursors *cursors)
{
    if ((atomic_load_explicit(&local_cursors->sleepers, memory_order_relaxed) |
         atomic_load_explicit(&cursors->sleepers, memory_order_relaxed)) != 0)
        rb_readers_wake(header, local_cursors, cursors); /* a call: the fast path saves no registers for it */
}

/* Select the slots of the cursor file that may block a writer: those of all blocking readers (the default,
 * for readers of the same user), or only slots that rb_writer_admit() has admitted. */
void rb_writer_select_blocking(rb_writer *writer, int only_admitted);

/* Evict every blocking reader of another process that blocks the space of claim_need().  Returns their
 * number. */
int rb_evict_stalled(rb_writer *writer, uint64_t length, uint32_t prefix);

/* wait.c.  Wait until `reader` has a record: spin for `spin_ns`, then sleep until `timeout_ns` from now.
 * The ring is checked again at least once per second.  Returns RB_OK, RB_TIMEOUT, RB_INTERRUPTED, or an error
 * of rb_peek(). */
int rb_reader_wait(rb_reader *reader, int64_t spin_ns, int64_t timeout_ns);
/* Wait until a claim would succeed.  Returns RB_OK, RB_TIMEOUT, RB_INTERRUPTED, or an error of
 * rb_can_claim(). */
int rb_writer_wait(rb_writer *writer, uint64_t length, uint32_t prefix, int64_t timeout_ns);

/* Internal to ringbuf/c. */
bool rb_capacity_fits(uint64_t capacity);
uint64_t rb_chunk_bytes(uint64_t capacity);
void rb_end_read(const rb_header *header, uint64_t *position, uint64_t *offset);
rb_slot *rb_slot_of(void *cursors, int slot); /* NULL: no such slot */
/* Cause for which the writer must refuse records now, RB_REFUSAL_*.  0 if there is none, or if it is set for
 * less than `patience_ns`. */
uint32_t rb_refusal(const rb_header *header, uint64_t now_ns, uint64_t patience_ns);
void rb_refused_count(rb_header *header, uint32_t why); /* only for the writer */
/* Private memory becomes zeros; the whole pages in it use no memory. */
void rb_memory_clear(void *memory, size_t bytes);
int rb_backoff(int64_t ns);                      /* RB_OK, or RB_INTERRUPTED after a signal */

#endif
