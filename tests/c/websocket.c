/* SPDX-License-Identifier: Apache-2.0
 *
 * The WebSocket decoder as a filter: a line is a connection, an answer is what came of it.
 *
 *     line     MESSAGE_MAX FRAMES_MAX PIECE ...     pieces of input, in hexadecimal; `-` is an empty one
 *     answer   PAYLOAD ANSWERS CLOSE_CODE PEER_CLOSED     in hexadecimal, `-` if empty; numbers in decimal
 *
 * Each piece is decoded in memory of its own size, so that a sanitizer sees a byte beyond it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mqtt/transport/websocket.h"

#define PAYLOAD_MAX (1u << 24) /* of a line */

static void show(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        printf("%02x", bytes[i]);
    printf(count == 0 ? "- " : " ");
}

static uint8_t *unhex(const char *text, uint32_t *count)
{
    *count = *text == '-' ? 0 : (uint32_t)(strlen(text) / 2);
    uint8_t *bytes = malloc(*count + (*count == 0));
    for (uint32_t i = 0; i < *count; i++) {
        unsigned byte = 0;
        sscanf(text + 2 * i, "%2x", &byte);
        bytes[i] = (uint8_t)byte;
    }
    return bytes;
}

static void connection(char *line)
{
    mq_websocket ws;
    uint64_t message_max = strtoull(strtok(line, " \n"), NULL, 10);
    mq_websocket_init(&ws, message_max, (uint32_t)strtoul(strtok(NULL, " \n"), NULL, 10));
    uint8_t *payload = malloc(PAYLOAD_MAX);
    size_t length = 0;
    for (const char *text; (text = strtok(NULL, " \n")) != NULL;) {
        uint32_t count;
        uint8_t *piece = unhex(text, &count);
        uint32_t found = mq_websocket_decode(&ws, piece, count);
        memcpy(payload + length, piece, found);
        length += found;
        free(piece);
    }
    show(payload, length);
    show(ws.answers, ws.answers_bytes);
    printf("%u %d\n", ws.close_code, ws.peer_closed);
    fflush(stdout);
    free(payload);
}

int main(void)
{
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, stdin) > 0)
        connection(line);
    free(line);
    return 0;
}
