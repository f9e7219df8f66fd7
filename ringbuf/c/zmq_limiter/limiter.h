/* SPDX-License-Identifier: Apache-2.0
 *
 * Common parts of the limiter: the framing of ZMTP 3.
 *
 *     frames.c   counts parts and bytes in a stream of bytes; no system calls
 *     ready.c    adds the owner of a link to its first command; no system calls
 *     limiter.c  sockets, clock, limits: all system calls
 *
 * ZMTP 3 (rfc.zeromq.org/spec/23): a greeting of 64 bytes, then frames:
 *
 *     u8   flags: 1 more parts follow, 2 the length has 8 bytes, 4 a command
 *     u8 or u64, big-endian   length of the body
 *
 * The first frame of a peer is the command READY: u8 5, "READY", then properties:
 *
 *     u8 length, name, u32 length, big-endian, value
 *
 * libzmq gives them to the program with each message of the peer, and the first one of a name counts.  So
 * the limiter puts "User-Id" before all others, as a ZAP handler would set it; the peer cannot replace it.
 *
 * CURVE encrypts READY and the flag "more": each frame of such a peer counts as a message.
 */
#ifndef BRIM_LIMITER_H
#define BRIM_LIMITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zmq_limiter/limiter_api.h"

#define ZL_GREETING_BYTES 64u
#define ZL_HEADER_MAX_BYTES 9u

typedef enum zl_verdict {
    ZL_FINE,
    ZL_MALFORMED,
    ZL_TOO_LONG
} zl_verdict;

/* One direction of one connection. */
typedef struct zl_frames {
    uint64_t position;    /* bytes seen, up to the end of the greeting */
    uint64_t left;        /* remaining bytes of the frame's body */
    uint64_t message;     /* bytes of the message so far, headers included; 0: between messages */
    uint64_t whole;       /* bytes of finished messages since the caller set it to 0 */
    uint64_t content;     /* bytes of frames that began since the caller set it to 0, without heartbeats */
    uint64_t count;       /* frames that began, without heartbeats */
    uint32_t parts;       /* of the message so far */
    uint8_t header_bytes; /* received bytes of the next header */
    uint8_t header[ZL_HEADER_MAX_BYTES];
    bool more;    /* another part follows the current one */
    bool command; /* the current frame is a command */
} zl_frames;

#define ZL_OF_ADDRESS (1ull << 63) /* an owner is the number of a user, or has this bit and an address */
#define ZL_READY_BYTES (ZL_HEADER_MAX_BYTES + 6u) /* header and name, at their longest */
#define ZL_OWNER_MAX_BYTES 32u                    /* with the 0 at the end */
#define ZL_READY_ROOM_BYTES (ZL_READY_BYTES + 12u + ZL_OWNER_MAX_BYTES)

/* Header and name of READY, kept back until all of their bytes have arrived. */
typedef struct zl_ready {
    uint8_t bytes[ZL_READY_BYTES];
    uint8_t count;
    bool passed;
} zl_ready;

/* Write the user id of an owner: "uid 1000", "address 127.0.0.1". */
void zl_owner_name(uint64_t owner, char name[static ZL_OWNER_MAX_BYTES]);

/* Number of bytes to read next, behind the greeting; 0: all have been passed on. */
size_t zl_ready_missing(const zl_ready *ready);

/* Take `length` bytes, at most the missing ones, from `bytes`, which has ZL_READY_ROOM_BYTES.  Returns the
 * number of bytes in `bytes` to pass on: 0, or READY with the user id `owner` so far, or, if the frame is
 * another one, which libzmq refuses, the same bytes. */
size_t zl_ready_pass(zl_ready *ready, uint8_t *bytes, size_t length, const char *owner);

/* Count `length` more bytes. */
zl_verdict zl_frames_read(zl_frames *frames, const uint8_t *bytes, size_t length, const zl_limits *limits);

#endif
