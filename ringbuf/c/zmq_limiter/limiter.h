/* SPDX-License-Identifier: Apache-2.0
 *
 * Common parts of the limiter: the framing of ZMTP 3.
 *
 *     frames.c   counts parts and bytes in a stream of bytes; no system calls
 *     limiter.c  sockets, clock, limits: all system calls
 *
 * ZMTP 3 (rfc.zeromq.org/spec/23): a greeting of 64 bytes, then frames:
 *
 *     u8   flags: 1 more parts follow, 2 the length has 8 bytes, 4 a command
 *     u8 or u64, big-endian   length of the body
 *
 * Only for mechanism NULL: CURVE encrypts the flags.
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

/* Count `length` more bytes. */
zl_verdict zl_frames_read(zl_frames *frames, const uint8_t *bytes, size_t length, const zl_limits *limits);

#endif
