/* SPDX-License-Identifier: Apache-2.0
 *
 * PROXY header, version 2: signature (12 bytes), version and command (1), family (1), length of the rest (2,
 * big-endian), the rest.  Version 1, which is text, is refused: its end can only be found by reading too
 * much.
 */
#include "mqtt/transport/proxy_layer.h"

#include <stdlib.h>

#include "mqtt/in/packets.h"

#define SIGNATURE_BYTES 12u
#define FIXED_BYTES 16u
/* A header with all that known proxies add is a few hundred bytes; the protocol allows 64 KiB. */
#define REST_MAX_BYTES 4096u

typedef struct proxy_layer {
    mq_layer layer; /* first: the same address */
    uint32_t got;   /* bytes of the header */
    uint32_t wanted;
    uint8_t fixed[FIXED_BYTES];
} proxy_layer;

static proxy_layer *of(mq_layer *layer)
{
    return (proxy_layer *)(void *)layer;
}

static ssize_t violation(proxy_layer *self, const char *reason)
{
    self->layer.reason = reason;
    errno = EPROTO;
    return -1;
}

/* Check `count` new bytes of the fixed part; `count` again, or -1 with errno. */
static ssize_t check(proxy_layer *self, const uint8_t *bytes, size_t count)
{
    static const char signature[] = "\r\n\r\n\0\r\nQUIT\n";
    memcpy(self->fixed + self->got, bytes, count);
    uint32_t got = self->got + (uint32_t)count;
    if (memcmp(self->fixed, signature, got < SIGNATURE_BYTES ? got : SIGNATURE_BYTES) != 0)
        return violation(self, "no PROXY header of version 2");
    if (got < FIXED_BYTES)
        return (ssize_t)count;
    uint32_t rest = (uint32_t)self->fixed[14] << 8 | self->fixed[15];
    if (self->fixed[12] >> 4 != 2)
        return violation(self, "PROXY header of an unknown version");
    if (rest > REST_MAX_BYTES)
        return violation(self, "PROXY header above 4096 bytes");
    self->wanted += rest;
    return (ssize_t)count;
}

static ssize_t layer_read(mq_layer *layer, int fd, uint8_t *to, size_t capacity)
{
    proxy_layer *self = of(layer);
    size_t left = self->wanted - self->got;
    if (left == 0) { /* Python has the header */
        errno = EAGAIN;
        return -1;
    }
    ssize_t count = mq_layer_read(NULL, fd, to, left < capacity ? left : capacity);
    if (count <= 0)
        return count;
    if (self->got < FIXED_BYTES && check(self, to, (size_t)count) < 0)
        return -1;
    self->got += (uint32_t)count;
    return count;
}

static ssize_t layer_write(mq_layer *layer, int fd, const uint8_t *from, size_t length)
{
    (void)layer, (void)fd, (void)from, (void)length;
    errno = EAGAIN; /* no byte is sent before the next layer */
    return -1;
}

static int layer_flush(mq_layer *layer, int fd)
{
    (void)layer, (void)fd;
    return 0;
}

static void layer_end(mq_layer *layer, int fd)
{
    (void)layer, (void)fd;
}

static void layer_free(mq_layer *layer)
{
    free(layer);
}

mq_layer *mq_proxy_layer(void)
{
    static const mq_layer_calls calls = {
        .read = layer_read, .write = layer_write, .flush = layer_flush, .end = layer_end, .free = layer_free};
    proxy_layer *self = calloc(1, sizeof *self);
    if (self == NULL)
        return NULL;
    self->layer.calls = &calls;
    self->wanted = FIXED_BYTES;
    return &self->layer;
}

void mq_proxy_header(mq_engine *engine, mq_connection *connection, uint32_t length)
{
    const proxy_layer *self = of(connection->layer);
    connection->need = 0;
    if (self->got == self->wanted)
        mq_yield_to_python(engine, connection, (mq_event){.kind = MQ_EVENT_PROXY, .length = length}, length);
}
