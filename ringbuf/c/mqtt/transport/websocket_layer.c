/* SPDX-License-Identifier: Apache-2.0
 *
 * WebSocket layer: connects the frames of websocket.c with a connection and the layer below.
 *
 * Until Python has answered the HTTP request, bytes pass unchanged in both directions.  The answer also
 * passes unchanged; input after the request is frames.
 *
 * Limits.  Until the broker has sent its first packet, a client may send FRAMES_MAX frames, and messages of
 * connect_max_bytes.  Then a message may be as long as a packet, and FRAME_SPARE_BYTES more for other packets
 * in it.
 */
#include "mqtt/transport/websocket_layer.h"

#include <errno.h>
#include <stdlib.h>

#include "mqtt/in/packets.h"
#include "mqtt/transport/websocket.h"

#define REQUEST_MAX_BYTES 16384u /* browsers also send cookies */
#define FRAMES_MAX 1024u         /* a client needs one, or some for a CONNECT in fragments */
#define FRAME_SPARE_BYTES 65536u

typedef struct websocket_layer {
    mq_layer layer; /* first: the same address */
    mq_websocket ws;
    uint64_t message_max; /* after the first packet of the broker */
    uint32_t answer_left; /* bytes of the HTTP answer that were not sent yet */
    bool is_upgraded;     /* input is frames */
    bool is_unlimited;    /* the broker has sent its first packet */
} websocket_layer;

static websocket_layer *of(mq_layer *layer)
{
    return (websocket_layer *)(void *)layer;
}

static void set_flags(websocket_layer *self)
{
    mq_layer *layer = &self->layer;
    const mq_layer *below = layer->below;
    bool holds = self->ws.answers_bytes > 0 && !mq_websocket_in_frame(&self->ws);
    layer->is_open = below == NULL || below->is_open;
    layer->wants_write = (below != NULL && below->wants_write) || (holds && self->answer_left == 0);
    layer->pending = (below != NULL && below->pending) || self->ws.close_code != 0;
    layer->reason = below == NULL ? NULL : below->reason;
}

/* ---- sending ---- */

/* Send pongs and one frame.  Returns the payload bytes taken, or -1 with errno. */
static ssize_t send_frame(websocket_layer *self, int fd, const uint8_t *from, uint32_t length)
{
    uint8_t wire[MQ_WS_WIRE_BYTES];
    uint32_t bytes = mq_websocket_output(&self->ws, from, length, wire);
    ssize_t sent = mq_layer_write(self->layer.below, fd, wire, bytes);
    if (sent < 0)
        return -1;
    uint32_t payload = mq_websocket_sent(&self->ws, (uint32_t)sent);
    if (payload > 0 || (uint32_t)sent == bytes)
        return payload;
    errno = EAGAIN;
    return -1;
}

static ssize_t send_answer(websocket_layer *self, int fd, const uint8_t *from, size_t length)
{
    ssize_t sent = mq_layer_write(self->layer.below, fd, from, length);
    if (sent > 0 && self->is_upgraded)
        self->answer_left -= (uint32_t)sent;
    return sent;
}

/* Send the pongs that wait.  0, or -1 with errno. */
static int send_pongs(websocket_layer *self, int fd)
{
    while (self->ws.answers_bytes > 0 && self->answer_left == 0 && !mq_websocket_in_frame(&self->ws))
        if (send_frame(self, fd, NULL, 0) < 0)
            return -1;
    return 0;
}

/* The first bytes after the HTTP answer are the broker's first packet. */
static void end_limits(websocket_layer *self)
{
    self->is_unlimited = true;
    self->ws.message_max = self->message_max;
    self->ws.frames_left = UINT32_MAX;
}

static ssize_t layer_write(mq_layer *layer, int fd, const uint8_t *from, size_t length)
{
    websocket_layer *self = of(layer);
    ssize_t sent = 0, part = 0;
    if (!self->is_upgraded || self->answer_left > 0) {
        size_t answer = self->is_upgraded && self->answer_left < length ? self->answer_left : length;
        sent = send_answer(self, fd, from, answer);
        set_flags(self);
        return sent;
    }
    if (!self->is_unlimited)
        end_limits(self);
    do {
        part = send_frame(self, fd, from + sent, (uint32_t)(length - (size_t)sent));
        sent += part > 0 ? part : 0;
    } while (part > 0 && (size_t)sent < length && !mq_websocket_in_frame(&self->ws));
    int error = errno;
    if (part >= 0)
        send_pongs(self, fd); /* errors are seen by the next call */
    set_flags(self);
    errno = error;
    return sent > 0 ? sent : part;
}

static int layer_flush(mq_layer *layer, int fd)
{
    websocket_layer *self = of(layer);
    mq_layer *below = layer->below;
    int result = below != NULL && below->wants_write ? below->calls->flush(below, fd) : 0;
    if (result == 0)
        result = send_pongs(self, fd);
    int error = errno;
    set_flags(self);
    errno = error;
    return result;
}

static void layer_end(mq_layer *layer, int fd)
{
    websocket_layer *self = of(layer);
    uint8_t wire[MQ_WS_WIRE_BYTES];
    uint32_t bytes = 0;
    if (self->is_upgraded && self->answer_left == 0)
        bytes = mq_websocket_close(&self->ws, wire);
    if (bytes > 0)
        mq_layer_write(layer->below, fd, wire, bytes);
    if (layer->below != NULL)
        layer->below->calls->end(layer->below, fd);
}

/* ---- receiving ---- */

/* Result of a read after the last input: the end that the client or a violation has caused. */
static ssize_t read_end(const websocket_layer *self)
{
    if (self->ws.peer_closed)
        return 0;
    errno = self->ws.close_code == MQ_WS_TOO_LARGE ? EMSGSIZE : EPROTO;
    return -1;
}

static ssize_t layer_read(mq_layer *layer, int fd, uint8_t *to, size_t capacity)
{
    websocket_layer *self = of(layer);
    if (self->ws.close_code != 0)
        return read_end(self);
    ssize_t count = mq_layer_read(layer->below, fd, to, capacity);
    int error = errno;
    if (count > 0 && self->is_upgraded) {
        count = mq_websocket_decode(&self->ws, to, (uint32_t)count);
        send_pongs(self, fd); /* errors are seen by the next call */
        if (count == 0 && self->ws.close_code != 0) {
            count = read_end(self);
            error = errno;
        } else if (count == 0) {
            count = -1;
            error = EAGAIN;
        }
    }
    set_flags(self);
    errno = error;
    return count;
}

static void layer_free(mq_layer *layer)
{
    free(layer);
}

mq_layer *mq_websocket_layer(mq_layer *below, uint32_t connect_max, uint32_t packet_max)
{
    static const mq_layer_calls calls = {
        .read = layer_read, .write = layer_write, .flush = layer_flush, .end = layer_end, .free = layer_free};
    websocket_layer *self = calloc(1, sizeof *self);
    if (self == NULL)
        return NULL;
    self->layer.calls = &calls;
    self->layer.below = below;
    self->message_max = (uint64_t)packet_max + FRAME_SPARE_BYTES;
    mq_websocket_init(&self->ws, connect_max, FRAMES_MAX);
    set_flags(self);
    return &self->layer;
}

/* ---- the HTTP request ---- */

void mq_websocket_request(mq_engine *engine, mq_connection *connection, const uint8_t *bytes, uint32_t length)
{
    static const char end[4] = {'\r', '\n', '\r', '\n'};
    uint32_t searched_bytes = length < REQUEST_MAX_BYTES ? length : REQUEST_MAX_BYTES;
    const uint8_t *found = memmem(bytes, searched_bytes, end, sizeof end);
    connection->need = 0;
    if (found != NULL) {
        uint32_t request = (uint32_t)(found - bytes) + (uint32_t)sizeof end;
        mq_yield_to_python(engine, connection, (mq_event){.kind = MQ_EVENT_UPGRADE, .length = request},
                           request);
    } else if (length >= REQUEST_MAX_BYTES) {
        mq_refuse(engine, connection, MQ_CLOSE_PROTOCOL);
    }
}

/* Documented in mqtt_api.h. */
int mq_engine_upgrade(mq_engine *engine, uint64_t handle, const uint8_t *answer, uint32_t length,
                      int accepted)
{
    mq_connection *connection = mq_slab_get(&engine->connections, handle);
    if (connection == NULL || !connection->upgrading || connection->stop != MQ_STOP_PYTHON)
        return 0;
    websocket_layer *self = of(connection->layer);
    if (length > 0 && !mq_write_output(engine, connection, answer, length)) /* 0: what came is no HTTP */
        return 0;
    if (!accepted) {
        mq_connection_close(engine, connection, MQ_CLOSE_PROTOCOL);
        return 0;
    }
    connection->upgrading = false;
    self->is_upgraded = true;
    self->answer_left = length;
    mq_bytes *in = &connection->in;
    uint32_t frames = in->start + connection->handled_bytes; /* place of frames that came with the request */
    in->end = frames + mq_websocket_decode(&self->ws, in->at + frames, in->end - frames);
    return 1;
}
