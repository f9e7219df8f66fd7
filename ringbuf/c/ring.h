/* SPDX-License-Identifier: Apache-2.0
 *
 * The writer and reader of one ring, for C.  Both live in their process's own memory; only what layout.h
 * describes is shared.  Neither allocates, neither makes a system call but to wake a sleeper.
 *
 * One thread at a time may use a writer, or a reader; calls.c holds the GIL, the MQTT loop its thread.
 */
#ifndef BRIM_RING_H
#define BRIM_RING_H

#include <stdbool.h>

#include "bell.h"
#include "layout.h"
#include "trail.h"

struct rb_writer {
    rb_header *header;
    uint8_t *data;
    rb_cursors *cursors; /* hostile; never NULL */
    uint64_t capacity, mask, chunk;
    uint64_t tail, offset;  /* where and with which number the next record begins */
    uint64_t reserve;       /* up to here gates have allowed writing: header->granted */
    _Atomic uint64_t gates; /* foreign slots that are heeded, one bit each; other threads admit and evict */
    bool listed;            /* gates holds only what was admitted */
    uint64_t permitted; /* gating readers let it go this far, as long as the next three are as they were */
    uint64_t joined, own_joined, heeded;
    uint64_t end_count;
    uint64_t indexed; /* chunks below this have their index entry */
    uint64_t newest_ns, plain_from; /* of the records that it has committed: see rb_step */
    uint64_t claim_ns;              /* timestamp of the claim under way */
    uint32_t epoch, crc_seed;
    uint32_t claimed;        /* payload position of the claim under way, 0: none */
    uint64_t claim_at;       /* its position */
    uint64_t claim_room;     /* its payload bytes */
    uint64_t largest;        /* longest record with its header, capacity / 4 */
    _Atomic(rb_bell *) bell; /* rung for what is published; NULL: nobody asks */
    uint32_t bell_index;
    _Atomic(rb_trail *) trail; /* where it leaves steps; NULL: nobody follows */
};

/* Takes over the ring at `memory` (`bytes` long, already inspected): new, or left by a writer that died.
 * Walks on from `end` over whatever was committed after it.  The caller has made sure that no other writer
 * lives; others may still change the file, so what the header says is held against `bytes` once more:
 * RB_CORRUPT. */
int rb_writer_open(rb_writer *writer, void *memory, uint64_t bytes, void *cursors);

typedef struct rb_key {
    const void *bytes;
    uint32_t length;
    uint32_t hash;          /* rb_crc32c(0, bytes, length) */
    const void *properties; /* wire form with its length in front, or NULL */
    uint32_t properties_length;
} rb_key;

/* Room for a payload of `length` bytes: header, key and properties are written, *payload is where to put it.
 * RB_FULL, RB_TOO_LARGE, RB_PENDING. */
int rb_claim(rb_writer *writer, const rb_key *key, uint64_t length, uint16_t flags, uint64_t timestamp_ns,
             uint8_t **payload);
/* Makes the claim a record of `actual` payload bytes, at most what was claimed.  Its offset is
 * writer->offset before the call.  `checked`: the payload is in the checksum.  The caller must then call
 * rb_end_publish(), at once or after a batch. */
void rb_commit(rb_writer *writer, uint64_t actual, bool checked);
void rb_abort(rb_writer *writer);
/* Publishes end and wakes sleepers. */
void rb_end_publish(rb_writer *writer);

/* rb_claim + copy + rb_commit(checked), without rb_end_publish. */
int rb_append(rb_writer *writer, const rb_key *key, const void *payload, uint64_t length, uint16_t flags,
              uint64_t timestamp_ns);

static inline const rb_record *rb_writer_record(const rb_writer *writer, uint64_t position)
{
    return (const rb_record *)(writer->data + (position & writer->mask));
}

/* Whether the record at `position` has not been given up to the writer yet: for what keeps positions. */
static inline bool rb_writer_keeps(const rb_writer *writer, uint64_t position)
{
    return writer->reserve <= position + writer->capacity;
}

struct rb_reader {
    const rb_header *header;
    const uint8_t *data;
    rb_slot *slot;              /* its own until it is closed; NULL for a reader that nobody sees */
    _Atomic uint64_t *sleepers; /* where it says that it sleeps, and its bit; NULL without a slot */
    uint64_t sleeper_bit;
    _Atomic uint64_t *joined; /* where it says that it has been placed */
    uint64_t capacity, mask, chunk;
    uint64_t cursor, offset; /* the next record's */
    uint64_t released;       /* gating: what it holds no longer; plain: the cursor */
    uint64_t told;           /* of that, what is stored in the slot */
    uint64_t lost;           /* records, in all */
    uint32_t epoch, crc_seed;
    const rb_trail *trail; /* of the writer, which is in this process; or NULL */
    bool gating;
    bool closed; /* the slot may be another's by now: it is not touched any more */
    bool verify; /* check each record's checksum: rings that others write */
    bool early;  /* is shown what is committed, also where readers wait for what is durable */
};

typedef struct rb_view {
    rb_record header; /* a copy; lengths already checked against the ring */
    rb_parts parts;
    const uint8_t *bytes; /* the record in the ring */
    uint64_t position;
} rb_view;

/* Joins at the latest record.  `memory` has `bytes`, header included, and has been inspected; what the
 * header says since is held against them, because its writer may be hostile: RB_CORRUPT.  `slots` is the
 * mapping that holds slot number `slot`: the ring's own memory if `own`, else the cursor file's; the caller
 * holds the slot's lock.  slot < 0: a reader without a slot, that cannot gate and naps instead of sleeping.
 */
int rb_reader_open(rb_reader *reader, const void *memory, uint64_t bytes, void *slots, bool own, int slot,
                   bool gating);
void rb_reader_close(rb_reader *reader);

/* The record at the cursor; the cursor moves behind it.  RB_OK, RB_EMPTY, RB_OVERRUN (the cursor now stands
 * at the oldest record and reader->lost has grown), RB_EVICTED, RB_CORRUPT. */
int rb_read(rb_reader *reader, rb_view *out);
/* Is a record there?  As rb_read says, but changes nothing, so that a thread may wait while another closes.
 */
int rb_peek(const rb_reader *reader);
/* Whether what was read at `position` is still that: pairs with the last fence in reserve_try(). */
static inline bool rb_reader_holds(const rb_reader *reader, uint64_t position)
{
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&reader->header->granted, memory_order_relaxed) <=
           position + reader->capacity;
}
/* Tells the slot how far this reader is: at once, or once a chunk. */
void rb_reader_tell(rb_reader *reader, uint64_t released);
void rb_reader_tell_lazily(rb_reader *reader, uint64_t released);

/* The oldest record that can be found: the first that begins in a chunk of which nothing has been given up.
 * Up to a chunk of older ones may still be held, and are read by who stands there; no index entry leads to
 * them. */
void rb_seek_oldest(rb_reader *reader);
void rb_seek_latest(rb_reader *reader);
/* RB_EMPTY: beyond the end; RB_OVERRUN: before the oldest that can be found, where the cursor now stands. */
int rb_seek_offset(rb_reader *reader, uint64_t offset);
void rb_seek_time(rb_reader *reader, uint64_t timestamp_ns); /* the first at or after; else the end */

/* RB_OK if a claim would succeed now; RB_FULL, RB_TOO_LARGE, RB_PENDING. */
int rb_room(rb_writer *writer, uint64_t length, uint32_t prefix);

/* Wakes whoever sleeps.  Part of rb_end_publish(); alone only to shut down. */
void rb_wake(rb_writer *writer);
void rb_sleepers_wake(rb_header *header, rb_cursors *cursors);

/* Evicts every foreign gating reader that stands in the way of `need`, as claim_need() says it: how many. */
int rb_evict_stalled(rb_writer *writer, uint64_t length, uint32_t prefix);

/* wait.c.  Waits until a record is there for `reader`: spins `spin_ns`, then sleeps until `timeout_ns` from
 * now, looking again each second whatever happens.  RB_OK, RB_TIMEOUT, RB_INTERRUPTED, or what rb_peek()
 * says. */
int rb_reader_wait(rb_reader *reader, int64_t spin_ns, int64_t timeout_ns);
/* Waits until a claim would succeed.  RB_OK, RB_TIMEOUT, RB_INTERRUPTED, or what else rb_room() says. */
int rb_writer_wait(rb_writer *writer, uint64_t length, uint32_t prefix, int64_t timeout_ns);

/* Shared among the files of ringbuf/c. */
bool rb_capacity_fits(uint64_t capacity);
uint64_t rb_chunk_bytes(uint64_t capacity);
void rb_end_read(const rb_header *header, uint64_t *position, uint64_t *offset);
rb_slot *rb_slot_of(void *memory, bool own, int slot);
/* Why the writer shall refuse what is published now, RB_REFUSAL_*, or 0: it was not told so, or not for as
 * long as `patience_ns`. */
uint32_t rb_refusal(const rb_header *header, uint64_t now_ns, uint64_t patience_ns);
void rb_refused_count(rb_header *header, uint32_t why); /* by the writer alone */
void rb_futex_wake(_Atomic uint32_t *word);
/* As a futex word: its changes are those of the whole, but for 4 GiB exactly. */
static inline _Atomic uint32_t *rb_low_half(_Atomic uint64_t *word)
{
    return (_Atomic uint32_t *)(void *)word; /* little-endian: record.h */
}
void rb_memory_clear(void *pages, size_t bytes); /* private pages: they are zeros, and take no memory */
/* Both: RB_OK, or RB_INTERRUPTED by a signal. */
int rb_futex_wait(const _Atomic uint32_t *word, uint32_t seen, int64_t ns);
int rb_nap(int64_t ns);

#endif
