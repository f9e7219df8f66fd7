/* SPDX-License-Identifier: Apache-2.0
 *
 * Framing of ZMTP 3: ends and lengths of messages.
 *
 * Costs one step for each frame, and none for bytes of a body.
 */
#include "gate/gate.h"

#define SIGNATURE_FIRST 0xFFu
#define SIGNATURE_LAST_AT 9u
#define SIGNATURE_LAST 0x7Fu
#define VERSION_AT 10u
#define VERSION_MIN 3u

enum {
    MORE = 1,
    LONG = 2,
    COMMAND = 4
};

static gt_decision greeting_read(gt_frames *it, uint8_t byte)
{
    bool fine = it->position == 0                   ? byte == SIGNATURE_FIRST
                : it->position == SIGNATURE_LAST_AT ? byte == SIGNATURE_LAST
                : it->position == VERSION_AT        ? byte >= VERSION_MIN
                                                    : true;
    it->position++;
    return fine ? GT_FINE : GT_MALFORMED;
}

/* Handle the end of a frame.  The message ends with it unless another part follows. */
static void frame_end(gt_frames *it)
{
    it->header_bytes = 0;
    if (it->command)
        return;
    if (!it->more) {
        it->whole += it->message;
        it->message = 0;
        it->parts = 0;
    }
}

static gt_decision header_end(gt_frames *it, const gt_limits *limits)
{
    uint8_t flags = it->header[0];
    uint64_t length = it->header[1];
    if (flags & LONG)
        for (size_t i = 2; i < GT_HEADER_MAX_BYTES; i++)
            length = length << 8 | it->header[i];
    it->command = flags & COMMAND;
    if (length > limits->message_max_bytes)
        return GT_TOO_LONG;
    it->left = length;
    if (!it->command) { /* a command may come between the parts of a message */
        it->more = flags & MORE;
        it->parts++;
        it->message += length + it->header_bytes;
        if (it->parts > limits->parts_max || (it->more && it->parts == limits->parts_max) ||
            it->message > limits->message_max_bytes)
            return GT_TOO_LONG;
    }
    if (length == 0)
        frame_end(it);
    else
        it->header_bytes = GT_HEADER_MAX_BYTES + 1; /* in the body */
    return GT_FINE;
}

static gt_decision header_read(gt_frames *it, uint8_t byte, const gt_limits *limits)
{
    it->header[it->header_bytes++] = byte;
    if (it->header_bytes == 1)
        return byte & ~(unsigned)(MORE | LONG | COMMAND) || (byte & COMMAND && byte & MORE) ? GT_MALFORMED
                                                                                            : GT_FINE;
    bool whole = it->header_bytes == (it->header[0] & LONG ? GT_HEADER_MAX_BYTES : 2u);
    return whole ? header_end(it, limits) : GT_FINE;
}

gt_decision gt_frames_read(gt_frames *frames, const uint8_t *bytes, size_t length, const gt_limits *limits)
{
    gt_decision found = GT_FINE;
    for (size_t at = 0; at < length && found == GT_FINE;) {
        if (frames->position < GT_GREETING_BYTES) {
            found = greeting_read(frames, bytes[at++]);
        } else if (frames->header_bytes <= GT_HEADER_MAX_BYTES) {
            found = header_read(frames, bytes[at++], limits);
        } else {
            uint64_t taken = length - at < frames->left ? length - at : frames->left;
            frames->left -= taken;
            at += (size_t)taken;
            if (frames->left == 0)
                frame_end(frames);
        }
    }
    return found;
}
