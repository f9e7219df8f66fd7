/* SPDX-License-Identifier: Apache-2.0
 *
 * Layers between a socket and the parser: TLS, WebSocket.
 *
 * connection->layer is the layer next to the parser; `below` is the next one; NULL is the socket.  A layer is
 * read and written as a socket is, by mq_layer_read() and mq_layer_write(), and uses the layer below in the
 * same way.  A plain connection has no layer, and costs one branch for each system call.
 *
 *   - A layer never returns more than `capacity` bytes.  If plain bytes or the end are ready inside, it sets
 *     `pending`, and the loop reads again without a readable socket.
 *   - Bytes that `write` has taken are the layer's.  If the layer could not send them, or if it must send to
 *     continue, it sets `wants_write`, and the loop calls `flush` when the socket is writable.
 *   - A layer passes on both flags of the layer below: the loop reads those of the top only.
 *   - The work of one call is bounded.  Memory is taken when it is needed, and given back when it is empty.
 */
#ifndef BRIM_MQTT_LAYER_H
#define BRIM_MQTT_LAYER_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

typedef struct mq_layer mq_layer;

typedef struct mq_layer_calls {
    /* As recv(): plain bytes; 0: the end; -1 with errno.  EAGAIN: nothing yet.  EPROTO: the peer has broken
     * the rules of the layer, and `reason` names the rule.  EMSGSIZE: the peer sends more than it may. */
    ssize_t (*read)(mq_layer *layer, int fd, uint8_t *to, size_t capacity);
    /* As send(): number of bytes taken; -1 with errno.  EAGAIN: none were taken, and the call is repeated
     * with at least the same bytes when the socket is writable. */
    ssize_t (*write)(mq_layer *layer, int fd, const uint8_t *from, size_t length);
    /* The socket is writable, and wants_write was set.  0: done; -1 with errno. */
    int (*flush)(mq_layer *layer, int fd);
    /* The socket is about to be closed: one attempt to send the end. */
    void (*end)(mq_layer *layer, int fd);
    void (*free)(mq_layer *layer); /* not `below` */
} mq_layer_calls;

struct mq_layer {
    const mq_layer_calls *calls;
    mq_layer *below; /* NULL: the socket */
    bool is_open;    /* its handshake is over, and so is that of the layer below */
    bool pending;
    bool wants_write;
    const char *reason; /* of EPROTO, for the log; valid as long as the layer.  NULL: not known */
};

static inline ssize_t mq_layer_read(mq_layer *layer, int fd, uint8_t *to, size_t capacity)
{
    if (layer != NULL)
        return layer->calls->read(layer, fd, to, capacity);
    return recv(fd, to, capacity, MSG_DONTWAIT);
}

static inline ssize_t mq_layer_write(mq_layer *layer, int fd, const uint8_t *from, size_t length)
{
    if (layer == NULL)
        return send(fd, from, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (layer->is_open)
        return layer->calls->write(layer, fd, from, length);
    errno = EAGAIN;
    return -1;
}

static inline void mq_layers_free(mq_layer *layer)
{
    while (layer != NULL) {
        mq_layer *below = layer->below;
        layer->calls->free(layer);
        layer = below;
    }
}

#endif
