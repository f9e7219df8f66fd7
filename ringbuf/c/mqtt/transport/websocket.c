/* SPDX-License-Identifier: Apache-2.0
 *
 * WebSocket decoder and the headers of frames.
 *
 * A header that is split between two reads is collected in head_in, a control frame in `control`.  Payloads
 * of data frames are not collected: they are unmasked in 16-byte steps, and moved over the headers before
 * them.  The output never overtakes the input, because each frame has a header.
 */
#include "mqtt/transport/websocket.h"

#include <stddef.h>
#include <string.h>

#include "base/utf8.h"

#define FIN 0x80u
#define RESERVED 0x70u /* no extension is negotiated */
#define OPCODE 0x0fu
#define CONTROL 0x08u /* bit of the opcodes of control frames */
#define MASKED 0x80u
#define LENGTH 0x7fu
#define LENGTH_16 126u
#define LENGTH_64 127u
#define MASK_BYTES 4u

enum {
    CONTINUATION = 0,
    TEXT = 1,
    BINARY = 2,
    CLOSE = 8,
    PING = 9,
    PONG = 10
};

typedef uint64_t words __attribute__((vector_size(16)));

void mq_websocket_init(mq_websocket *ws, uint64_t message_max, uint32_t frames_max)
{
    memset(ws, 0, sizeof *ws);
    ws->message_max = message_max;
    ws->frames_left = frames_max;
}

void mq_websocket_fail(mq_websocket *ws, uint16_t code)
{
    if (ws->close_code == 0)
        ws->close_code = code;
}

/* ---- payloads ---- */

/* Unmask `count` bytes from `from` to `to`, which is at or before it.  Each load comes before the store over
 * the same bytes. */
static void unmask(uint8_t *to, const uint8_t *from, size_t count, uint8_t mask[MASK_BYTES])
{
    uint32_t four;
    memcpy(&four, mask, sizeof four);
    const uint64_t eight = four * 0x100000001u;
    const words sixteen = {eight, eight};
    size_t i = 0;
    for (words part; i + sizeof part <= count; i += sizeof part) {
        memcpy(&part, from + i, sizeof part);
        part ^= sixteen;
        memcpy(to + i, &part, sizeof part);
    }
    for (uint64_t part; i + sizeof part <= count; i += sizeof part) {
        memcpy(&part, from + i, sizeof part);
        part ^= eight;
        memcpy(to + i, &part, sizeof part);
    }
    uint8_t turned[MASK_BYTES];
    for (; i < count; i++)
        to[i] = from[i] ^ mask[i % MASK_BYTES];
    for (size_t n = 0; n < MASK_BYTES; n++)
        turned[n] = mask[(n + count) % MASK_BYTES];
    memcpy(mask, turned, sizeof turned);
}

/* ---- control frames ---- */

/* True if another pong may be too long. */
static bool is_full(const mq_websocket *ws)
{
    return ws->answers_bytes + MQ_WS_PONG_MAX > MQ_WS_ANSWERS_BYTES;
}

/* Without room the last pong, which is not among answers_first, is replaced. */
static void answer_ping(mq_websocket *ws)
{
    uint8_t *to = ws->answers + (is_full(ws) ? ws->last_answer : ws->answers_bytes);
    to[0] = FIN | PONG;
    to[1] = ws->control_bytes;
    memcpy(to + 2, ws->control, ws->control_bytes);
    ws->last_answer = (uint16_t)(to - ws->answers);
    ws->answers_bytes = (uint16_t)(ws->last_answer + 2u + ws->control_bytes);
}

/* True for a code that an endpoint may send: section 7.4. */
static bool is_close_code(uint32_t code)
{
    return (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014) || (code >= 3000 && code <= 4999);
}

static void closed_by_peer(mq_websocket *ws)
{
    uint32_t code = MQ_WS_NO_STATUS;
    if (ws->control_bytes >= 2) {
        code = (uint32_t)ws->control[0] << 8 | ws->control[1];
        if (!is_close_code(code))
            code = 0;
    } else if (ws->control_bytes == 1) {
        code = 0;
    }
    if (code == 0) {
        mq_websocket_fail(ws, MQ_WS_PROTOCOL);
    } else if (ws->control_bytes > 2 && !rb_is_utf8(ws->control + 2, ws->control_bytes - 2u)) {
        mq_websocket_fail(ws, MQ_WS_NOT_UTF8);
    } else {
        ws->peer_closed = true;
        mq_websocket_fail(ws, (uint16_t)code);
    }
}

static void control_ends(mq_websocket *ws)
{
    if (ws->opcode == PING)
        answer_ping(ws);
    else if (ws->opcode == CLOSE)
        closed_by_peer(ws);
    ws->control_bytes = 0;
}

/* ---- headers ---- */

static uint32_t head_length(uint8_t second)
{
    uint32_t length = second & LENGTH;
    return 2 + (length == LENGTH_16 ? 2 : length == LENGTH_64 ? 8 : 0) + MASK_BYTES;
}

/* Code of the violation in the first two bytes of a header; 0: none. */
static uint16_t violation(const mq_websocket *ws, uint8_t first, uint8_t second)
{
    uint8_t opcode = first & OPCODE;
    bool is_bad = opcode & CONTROL ? opcode > PONG || !(first & FIN) || (second & LENGTH) > MQ_WS_CONTROL_MAX
                                   : opcode > BINARY || (opcode != CONTINUATION) == ws->in_message;
    if (is_bad || first & RESERVED || !(second & MASKED))
        return MQ_WS_PROTOCOL;
    return opcode == TEXT ? MQ_WS_UNSUPPORTED : ws->frames_left == 0 ? MQ_WS_POLICY : 0;
}

/* Length of the payload by a complete header; UINT64_MAX: not in the shortest form, or above 2^63 - 1. */
static uint64_t payload_length(const uint8_t *head)
{
    uint64_t length = head[1] & LENGTH;
    if (length < LENGTH_16)
        return length;
    uint32_t bytes = length == LENGTH_16 ? 2 : 8;
    length = 0;
    for (uint32_t i = 0; i < bytes; i++)
        length = length << 8 | head[2 + i];
    return length < (bytes == 2 ? LENGTH_16 : 65536u) || length >> 63 ? UINT64_MAX : length;
}

/* Begin the frame with this complete header. */
static void frame_begins(mq_websocket *ws, const uint8_t *head, uint32_t head_bytes)
{
    uint64_t length = payload_length(head);
    ws->opcode = head[0] & OPCODE;
    memcpy(ws->mask, head + head_bytes - MASK_BYTES, MASK_BYTES);
    if (length == UINT64_MAX) {
        mq_websocket_fail(ws, MQ_WS_PROTOCOL);
        return;
    }
    if (ws->frames_left != UINT32_MAX)
        ws->frames_left--;
    if (!(ws->opcode & CONTROL)) {
        if (ws->opcode == BINARY)
            ws->message_bytes = 0;
        ws->in_message = !(head[0] & FIN);
        if (length > ws->message_max - ws->message_bytes) {
            mq_websocket_fail(ws, MQ_WS_TOO_LARGE);
            return;
        }
        ws->message_bytes += length;
    }
    ws->left = length;
    if (length == 0 && ws->opcode & CONTROL)
        control_ends(ws);
}

/* Read a header, or its next part.  Returns the place after it. */
static const uint8_t *read_head(mq_websocket *ws, const uint8_t *at, const uint8_t *end)
{
    const uint8_t *head = at;
    uint32_t have = ws->head_in_bytes;
    if (have > 0 || end - at < (ptrdiff_t)MQ_WS_HEAD_MAX) { /* perhaps incomplete: byte by byte */
        head = ws->head_in;
        while (at < end && (have < 2 || have < head_length(head[1]))) {
            ws->head_in[have++] = *at++;
            if (have == 2)
                mq_websocket_fail(ws, violation(ws, head[0], head[1]));
        }
        ws->head_in_bytes = (uint8_t)have;
        if (ws->close_code != 0 || have < 2 || have < head_length(head[1]))
            return at;
        ws->head_in_bytes = 0;
    } else {
        have = head_length(at[1]);
        at += have;
        mq_websocket_fail(ws, violation(ws, head[0], head[1]));
        if (ws->close_code != 0)
            return at;
    }
    frame_begins(ws, head, have);
    return at;
}

uint32_t mq_websocket_decode(mq_websocket *ws, uint8_t *bytes, uint32_t count)
{
    const uint8_t *at = bytes, *end = bytes + count;
    uint8_t *out = bytes;
    while (at < end && ws->close_code == 0) {
        if (ws->left == 0) {
            at = read_head(ws, at, end);
            continue;
        }
        size_t part = (size_t)(end - at) < ws->left ? (size_t)(end - at) : (size_t)ws->left;
        if (ws->opcode & CONTROL) {
            unmask(ws->control + ws->control_bytes, at, part, ws->mask);
            ws->control_bytes += (uint8_t)part;
        } else {
            unmask(out, at, part, ws->mask);
            out += part;
        }
        at += part;
        ws->left -= part;
        if (ws->left == 0 && ws->opcode & CONTROL)
            control_ends(ws);
    }
    return (uint32_t)(out - bytes);
}

/* ---- frames to the client ---- */

static uint32_t write_head(uint8_t *to, uint32_t length)
{
    to[0] = FIN | BINARY;
    uint32_t bytes = length < LENGTH_16 ? 0 : length < 65536u ? 2 : 8;
    to[1] = bytes == 0 ? (uint8_t)length : bytes == 2 ? LENGTH_16 : LENGTH_64;
    for (uint32_t i = 0; i < bytes; i++)
        to[2 + i] = (uint8_t)((uint64_t)length >> 8 * (bytes - 1 - i));
    return 2 + bytes;
}

/* Begin a frame after the pongs of now.  The last of a full buffer stays replaceable. */
static void begin_output(mq_websocket *ws, uint32_t length)
{
    ws->answers_first = is_full(ws) ? ws->last_answer : ws->answers_bytes;
    if (length == 0)
        return;
    ws->out_left = length < MQ_WS_FRAME_OUT_MAX ? length : MQ_WS_FRAME_OUT_MAX;
    ws->head_out_start = 0;
    ws->head_out_end = (uint8_t)write_head(ws->head_out, ws->out_left);
}

uint32_t mq_websocket_output(mq_websocket *ws, const uint8_t *from, uint32_t length,
                             uint8_t wire[MQ_WS_WIRE_BYTES])
{
    uint8_t *to = wire;
    if (!mq_websocket_in_frame(ws))
        begin_output(ws, length);
    memcpy(to, ws->answers, ws->answers_first);
    to += ws->answers_first;
    uint32_t head = ws->head_out_end - ws->head_out_start;
    memcpy(to, ws->head_out + ws->head_out_start, head);
    to += head;
    uint32_t payload = length < ws->out_left ? length : ws->out_left;
    if (payload > 0)
        memcpy(to, from, payload);
    return (uint32_t)(to - wire) + payload;
}

/* Remove `count` bytes from the front of the pongs. */
static void answers_sent(mq_websocket *ws, uint32_t count)
{
    ws->answers_first -= (uint16_t)count;
    ws->answers_bytes -= (uint16_t)count;
    ws->last_answer = ws->last_answer < count ? 0 : (uint16_t)(ws->last_answer - count);
    memmove(ws->answers, ws->answers + count, ws->answers_bytes);
}

uint32_t mq_websocket_sent(mq_websocket *ws, uint32_t count)
{
    uint32_t answers = count < ws->answers_first ? count : ws->answers_first;
    uint32_t head = ws->head_out_end - ws->head_out_start;
    if (answers > 0)
        answers_sent(ws, answers);
    count -= answers;
    head = count < head ? count : head;
    ws->head_out_start += (uint8_t)head;
    ws->out_left -= count - head;
    return count - head;
}

uint32_t mq_websocket_close(const mq_websocket *ws, uint8_t wire[MQ_WS_WIRE_BYTES])
{
    if (mq_websocket_in_frame(ws))
        return 0;
    uint32_t code = ws->close_code == 0 ? MQ_WS_NORMAL : ws->close_code;
    uint8_t *to = wire + ws->answers_bytes;
    memcpy(wire, ws->answers, ws->answers_bytes);
    to[0] = FIN | CLOSE;
    to[1] = code == MQ_WS_NO_STATUS ? 0 : 2;
    to[2] = (uint8_t)(code >> 8);
    to[3] = (uint8_t)code;
    return ws->answers_bytes + 2u + to[1];
}
