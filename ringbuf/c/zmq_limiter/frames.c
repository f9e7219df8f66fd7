/* SPDX-License-Identifier: Apache-2.0
 *
 * Framing of ZMTP 3: ends and lengths of messages.
 *
 * Costs one step for each frame, and none for bytes of a body.
 */
#include "zmq_limiter/limiter.h"

#define SIGNATURE_FIRST 0xFFu
#define SIGNATURE_LAST_AT 9u
#define SIGNATURE_LAST 0x7Fu
#define VERSION_AT 10u
#define VERSION_MIN 3u
/* Commands of fewer bytes are heartbeats: PING with a time, PONG.  SUBSCRIBE alone has 10 bytes. */
#define CONTENT_MIN 10u

enum {
    MORE = 1,
    LONG = 2,
    COMMAND = 4
};

static zl_verdict greeting_read(zl_frames *frames, uint8_t byte)
{
    bool fine = frames->position == 0                   ? byte == SIGNATURE_FIRST
                : frames->position == SIGNATURE_LAST_AT ? byte == SIGNATURE_LAST
                : frames->position == VERSION_AT        ? byte >= VERSION_MIN
                                                        : true;
    frames->position++;
    return fine ? ZL_FINE : ZL_MALFORMED;
}

/* Handle the end of a frame.  The message ends with it unless another part follows. */
static void frame_end(zl_frames *frames)
{
    frames->header_bytes = 0;
    if (frames->command)
        return;
    if (!frames->more) {
        frames->whole += frames->message;
        frames->message = 0;
        frames->parts = 0;
    }
}

static zl_verdict header_end(zl_frames *frames, const zl_limits *limits)
{
    uint8_t flags = frames->header[0];
    uint64_t length = frames->header[1];
    if (flags & LONG)
        for (size_t i = 2; i < ZL_HEADER_MAX_BYTES; i++)
            length = length << 8 | frames->header[i];
    frames->command = flags & COMMAND;
    if (length > limits->message_max_bytes)
        return ZL_TOO_LONG;
    frames->left = length;
    if (!frames->command || length >= CONTENT_MIN) {
        frames->content += length + frames->header_bytes;
        frames->count++;
    }
    if (!frames->command) { /* a command may come between the parts of a message */
        frames->more = flags & MORE;
        frames->parts++;
        frames->message += length + frames->header_bytes;
        if (frames->parts > limits->parts_max || (frames->more && frames->parts == limits->parts_max) ||
            frames->message > limits->message_max_bytes)
            return ZL_TOO_LONG;
    }
    if (length == 0)
        frame_end(frames);
    else
        frames->header_bytes = ZL_HEADER_MAX_BYTES + 1; /* in the body */
    return ZL_FINE;
}

static zl_verdict header_read(zl_frames *frames, uint8_t byte, const zl_limits *limits)
{
    frames->header[frames->header_bytes++] = byte;
    if (frames->header_bytes == 1)
        return byte & ~(unsigned)(MORE | LONG | COMMAND) || (byte & COMMAND && byte & MORE) ? ZL_MALFORMED
                                                                                            : ZL_FINE;
    bool whole = frames->header_bytes == (frames->header[0] & LONG ? ZL_HEADER_MAX_BYTES : 2u);
    return whole ? header_end(frames, limits) : ZL_FINE;
}

zl_verdict zl_frames_read(zl_frames *frames, const uint8_t *bytes, size_t length, const zl_limits *limits)
{
    zl_verdict verdict = ZL_FINE;
    for (size_t at = 0; at < length && verdict == ZL_FINE;) {
        if (frames->position < ZL_GREETING_BYTES) {
            verdict = greeting_read(frames, bytes[at++]);
        } else if (frames->header_bytes <= ZL_HEADER_MAX_BYTES) {
            verdict = header_read(frames, bytes[at++], limits);
        } else {
            uint64_t taken = length - at < frames->left ? length - at : frames->left;
            frames->left -= taken;
            at += (size_t)taken;
            if (frames->left == 0)
                frame_end(frames);
        }
    }
    return verdict;
}
