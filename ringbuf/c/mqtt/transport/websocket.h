/* SPDX-License-Identifier: Apache-2.0
 *
 * WebSocket framing of one connection, after the HTTP upgrade (RFC 6455, sections 5 and 7; MQTT section 6).
 * The server's side: frames of the client are masked, frames to the client are not.
 *
 * MQTT is a stream of bytes: packets begin and end anywhere in frames [MQTT-6.0.0-2].  So no frame is ever
 * collected.  Input is unmasked and moved together in the buffer it was read into, and a batch of output
 * bytes is one binary frame.
 *
 * Invariants: the state has a fixed size, whatever the client sends.  Each step costs time linear in the
 * bytes of its input.  A frame that was begun to the client is finished before other bytes are sent.
 */
#ifndef BRIM_WEBSOCKET_H
#define BRIM_WEBSOCKET_H

#include <stdbool.h>
#include <stdint.h>

#define MQ_WS_HEAD_MAX 14u     /* first two bytes, length, mask */
#define MQ_WS_HEAD_OUT_MAX 10u /* without a mask */
#define MQ_WS_CONTROL_MAX 125u /* payload of a control frame: section 5.5 */
#define MQ_WS_PONG_MAX (2 + MQ_WS_CONTROL_MAX)
/* Pongs that wait for the socket.  Of more pings, only the last is answered: section 5.5.3. */
#define MQ_WS_ANSWERS_BYTES (5 * MQ_WS_PONG_MAX)
#define MQ_WS_FRAME_OUT_MAX 65536u /* payload of a frame to the client */
/* Bytes that mq_websocket_output() writes at most. */
#define MQ_WS_WIRE_BYTES (MQ_WS_ANSWERS_BYTES + MQ_WS_HEAD_OUT_MAX + MQ_WS_FRAME_OUT_MAX)

enum { /* status codes of close frames: section 7.4.1 */
    MQ_WS_NORMAL = 1000,
    MQ_WS_PROTOCOL = 1002,
    MQ_WS_UNSUPPORTED = 1003, /* a text frame: MQTT is binary [MQTT-6.0.0-1] */
    MQ_WS_NO_STATUS = 1005,   /* a close frame without a code; never sent */
    MQ_WS_NOT_UTF8 = 1007,
    MQ_WS_POLICY = 1008,
    MQ_WS_TOO_LARGE = 1009
};

typedef struct mq_websocket {
    uint64_t left;          /* missing bytes of the payload of the frame at hand */
    uint64_t message_bytes; /* payload of the message so far, the frame at hand included */
    uint64_t message_max;   /* limit of message_bytes */
    uint32_t frames_left;   /* frames that the client may still send; UINT32_MAX: no limit */
    uint32_t out_left;      /* payload bytes of the frame to the client that were not sent yet */
    uint16_t close_code;    /* of the close frame to the client, once no more input is accepted; 0: open */
    uint16_t answers_bytes; /* in `answers` */
    uint16_t answers_first; /* part of them that is sent before the frame at hand */
    uint16_t last_answer;   /* place of the last pong in `answers` */
    uint8_t opcode;         /* of the frame at hand */
    bool in_message;        /* the last data frame was not final */
    bool peer_closed;       /* the client has sent a valid close frame */
    uint8_t mask[4];        /* the first is for the next byte */
    uint8_t head_in_bytes;  /* of an incomplete header */
    uint8_t control_bytes;  /* of an incomplete control frame */
    uint8_t head_out_start, head_out_end; /* bytes of head_out that were not sent yet */
    uint8_t head_in[MQ_WS_HEAD_MAX];
    uint8_t head_out[MQ_WS_HEAD_OUT_MAX];
    uint8_t control[MQ_WS_CONTROL_MAX];
    uint8_t answers[MQ_WS_ANSWERS_BYTES]; /* pongs, the oldest first */
} mq_websocket;

/* Begin a connection: the upgrade was answered. */
void mq_websocket_init(mq_websocket *ws, uint64_t message_max, uint32_t frames_max);

/* Decode `count` bytes of input at `bytes`.  The payload of data frames replaces them, from the first byte
 * on; returns its length.  Pings add to `answers`.  After a close frame or a violation close_code is set, and
 * all further input is ignored. */
uint32_t mq_websocket_decode(mq_websocket *ws, uint8_t *bytes, uint32_t count);

/* Stop accepting input, and choose the code of the close frame, unless it was chosen before. */
void mq_websocket_fail(mq_websocket *ws, uint16_t code);

/* Write the next bytes to the client to `wire`: pongs, and frames with `length` bytes of payload at `from`.
 * Returns their number.  They are the same at each call, perhaps with more after them, until they are sent.
 * The payload after a frame that was begun has at least its missing bytes. */
uint32_t mq_websocket_output(mq_websocket *ws, const uint8_t *from, uint32_t length,
                             uint8_t wire[MQ_WS_WIRE_BYTES]);

/* Account for the first `count` bytes of that output, which were sent.  Returns the payload bytes in them. */
uint32_t mq_websocket_sent(mq_websocket *ws, uint32_t count);

/* Write pongs and the close frame to `wire`; returns their length.  0: a frame was begun and not finished. */
uint32_t mq_websocket_close(const mq_websocket *ws, uint8_t wire[MQ_WS_WIRE_BYTES]);

/* True if a frame to the client was begun and not finished. */
static inline bool mq_websocket_in_frame(const mq_websocket *ws)
{
    return ws->out_left > 0;
}

#endif
