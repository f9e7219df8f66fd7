/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames of a WebSocket client through websocket.c, whole and in pieces.  For libFuzzer.
 *
 *   input   byte 0: the limits, and the length of each piece; the rest is from the client
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mqtt/transport/websocket.h"
#include "must.h"

/* Decode in pieces, each in memory of its own size.  Returns the length of the payload. */
static size_t decoded(mq_websocket *ws, const uint8_t *data, size_t size, size_t piece, uint8_t *payload)
{
    size_t length = 0;
    for (size_t at = 0; at < size; at += piece) {
        uint32_t count = (uint32_t)(size - at < piece ? size - at : piece);
        uint8_t *bytes = malloc(count);
        memcpy(bytes, data + at, count);
        bool was_closed = ws->close_code != 0;
        uint32_t found = mq_websocket_decode(ws, bytes, count);
        must(found <= count, "a payload is not longer than its frames");
        must(found == 0 || !was_closed, "nothing comes after the end");
        memcpy(payload + length, bytes, found);
        length += found;
        free(bytes);
    }
    return length;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    uint64_t message_max = data[0] & 1 ? 64 : 1u << 20;
    uint32_t frames_max = data[0] & 2 ? 4 : UINT32_MAX;
    size_t piece = 1 + (data[0] >> 2);
    mq_websocket whole, parts;
    mq_websocket_init(&whole, message_max, frames_max);
    mq_websocket_init(&parts, message_max, frames_max);
    uint8_t *payload = malloc(size), *again = malloc(size);
    size_t length = decoded(&whole, data + 1, size - 1, size, payload);
    must(decoded(&parts, data + 1, size - 1, piece, again) == length, "pieces have the same length");
    must(memcmp(payload, again, length) == 0, "pieces have the same bytes");
    must(whole.close_code == parts.close_code, "pieces end with the same code");
    must(whole.message_bytes <= message_max, "a message has a limit");
    must(whole.answers_bytes == parts.answers_bytes && whole.answers_bytes <= MQ_WS_ANSWERS_BYTES &&
             memcmp(whole.answers, parts.answers, whole.answers_bytes) == 0,
         "pieces have the same answers");
    free(payload);
    free(again);
    return 0;
}
