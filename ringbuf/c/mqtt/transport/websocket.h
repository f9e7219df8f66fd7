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
/* Pongs that wait for the socket.  Of more pings, only the last is answered: section 5.5.3. */
#define MQ_WS_ANSWERS_BYTES (4 * (2 + MQ_WS_CONTROL_MAX))

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
    uint32_t out_left;      /* bytes of the frame to the client that were not sent yet */
    uint16_t close_code;    /* of the close frame to the client, once no more input is accepted; 0: open */
    uint16_t answers_start, answers_end;  /* bytes of `answers` that wait for the socket */
    uint16_t last_answer;                 /* place of the last pong in `answers` */
    uint8_t opcode;                       /* of the frame at hand */
    bool in_message;                      /* the last data frame was not final */
    bool peer_closed;                     /* the client has sent a valid close frame */
    uint8_t mask[4];                      /* the first is for the next byte */
    uint8_t head_in_bytes;                /* of an incomplete header */
    uint8_t control_bytes;                /* of an incomplete control frame */
    uint8_t head_out_start, head_out_end; /* bytes of head_out that wait for the socket */
    uint8_t head_in[MQ_WS_HEAD_MAX];
    uint8_t head_out[MQ_WS_HEAD_OUT_MAX];
    uint8_t control[MQ_WS_CONTROL_MAX];
    uint8_t answers[MQ_WS_ANSWERS_BYTES];
} mq_websocket;

/* Begin a connection: the upgrade was answered. */
void mq_websocket_init(mq_websocket *ws, uint64_t message_max, uint32_t frames_max);

/* Decode `count` bytes of input at `bytes`.  The payload of data frames replaces them, from the first byte
 * on; returns its length.  Pings add to `answers`.  After a close frame or a violation close_code is set, and
 * all further input is ignored. */
uint32_t mq_websocket_decode(mq_websocket *ws, uint8_t *bytes, uint32_t count);

/* Stop accepting input, and choose the code of the close frame, unless it was chosen before. */
void mq_websocket_fail(mq_websocket *ws, uint16_t code);

/* Write the header of a binary frame of `length` bytes to `to`; returns the length of the header. */
uint32_t mq_websocket_head(uint8_t to[MQ_WS_HEAD_OUT_MAX], uint32_t length);

/* Write the close frame to `to`; returns its length. */
uint32_t mq_websocket_close(const mq_websocket *ws, uint8_t to[4]);

/* True if the client must take pongs before it is read again. */
static inline bool mq_websocket_is_full(const mq_websocket *ws)
{
    return ws->answers_end + 2 + MQ_WS_CONTROL_MAX > MQ_WS_ANSWERS_BYTES;
}

#endif
