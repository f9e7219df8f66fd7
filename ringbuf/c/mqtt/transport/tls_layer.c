/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS layer: the records of one connection, by OpenSSL over the layer below.
 *
 *   - One read of the socket fills OpenSSL's buffer (read_ahead), and all records in it are decrypted into
 *     the parser's buffer.  A read that returned less than its room has emptied the socket: `drained` saves
 *     the call that would return EAGAIN.
 *   - The handshake runs while is_open is false, in the loop's turns for handshakes.  Until it is over, the
 *     buffer for input has the length of one record.
 *   - A stream without a close_notify before its end was cut: ECONNRESET, as a connection that was reset.
 *   - OpenSSL bounds renegotiation (refused), key updates and empty records of a client.
 */
#include "mqtt/transport/tls.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#define READ_AHEAD_BYTES 32768u /* after the handshake; OpenSSL frees the buffer whenever it is empty */

typedef struct tls_layer {
    mq_layer layer; /* first: the same address */
    mq_tls_context *const *context;
    SSL *ssl;        /* NULL: no input yet */
    int fd;          /* of the current call */
    int end_errno;   /* with has_ended; 0: the client has sent close_notify */
    bool has_ended;  /* no more input */
    bool has_failed; /* the connection can send nothing either, not even close_notify */
    bool drained;    /* the socket is empty */
    bool at_end;     /* end of file */
    bool in_record;  /* a record to the client was begun and not sent to its end */
} tls_layer;

static tls_layer *of(mq_layer *layer)
{
    return (tls_layer *)(void *)layer;
}

/* ---- the socket as OpenSSL sees it ---- */

static int retry(BIO *bio, int direction)
{
    mq_ssl.BIO_set_flags(bio, direction | BIO_FLAGS_SHOULD_RETRY);
    return -1;
}

static int bio_read(BIO *bio, char *to, int capacity)
{
    tls_layer *self = mq_ssl.BIO_get_data(bio);
    mq_ssl.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    if (self->drained)
        return retry(bio, BIO_FLAGS_READ);
    ssize_t count = mq_layer_read(self->layer.below, self->fd, (uint8_t *)to, (size_t)capacity);
    self->at_end = count == 0;
    self->drained = count > 0 && count < capacity && self->layer.below == NULL;
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return retry(bio, BIO_FLAGS_READ);
    return (int)count;
}

static int bio_write(BIO *bio, const char *from, int length)
{
    tls_layer *self = mq_ssl.BIO_get_data(bio);
    mq_ssl.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    ssize_t count = mq_layer_write(self->layer.below, self->fd, (const uint8_t *)from, (size_t)length);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return retry(bio, BIO_FLAGS_WRITE);
    return (int)count;
}

static long bio_control(BIO *bio, int command, long number, void *more)
{
    (void)number, (void)more;
    if (command == BIO_CTRL_EOF)
        return ((tls_layer *)mq_ssl.BIO_get_data(bio))->at_end;
    return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *method; /* of all connections */

bool mq_tls_prepare(void)
{
    method = mq_ssl.BIO_meth_new(mq_ssl.BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "layer");
    return method != NULL && mq_ssl.BIO_meth_set_read(method, bio_read) == 1 &&
           mq_ssl.BIO_meth_set_write(method, bio_write) == 1 &&
           mq_ssl.BIO_meth_set_ctrl(method, bio_control) == 1;
}

/* ---- results ---- */

static void end(tls_layer *self, int error)
{
    self->has_ended = true;
    self->has_failed = error != 0;
    self->end_errno = error;
}

/* Act on a failed call of OpenSSL.  Sets errno to EAGAIN, or ends the input. */
static void failed(tls_layer *self, int result)
{
    int error = mq_ssl.SSL_get_error(self->ssl, result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
        self->layer.wants_write |= error == SSL_ERROR_WANT_WRITE;
        errno = EAGAIN;
    } else if (error == SSL_ERROR_ZERO_RETURN) {
        end(self, 0);
    } else if (error == SSL_ERROR_SYSCALL || self->at_end) {
        end(self, ECONNRESET);
    } else {
        self->layer.reason = mq_openssl_reason();
        end(self, EPROTO);
    }
}

static ssize_t read_end(const tls_layer *self)
{
    errno = self->end_errno;
    return errno == 0 ? 0 : -1;
}

/* ---- handshake ---- */

/* Begin TLS with the first input of the client.  False: no memory. */
static bool begin(tls_layer *self)
{
    BIO *bio = mq_ssl.BIO_new(method);
    if (bio == NULL)
        return false;
    mq_ssl.BIO_set_data(bio, self);
    mq_ssl.BIO_set_init(bio, 1);
    /* pairs with the release in mq_tls_context_use() */
    self->ssl = mq_ssl.SSL_new(__atomic_load_n(self->context, __ATOMIC_ACQUIRE));
    if (self->ssl == NULL) {
        mq_ssl.BIO_free(bio);
        return false;
    }
    mq_ssl.SSL_set_bio(self->ssl, bio, bio); /* belongs to `ssl` from now on */
    mq_ssl.SSL_set_accept_state(self->ssl);
    return true;
}

/* True if the handshake is over.  Otherwise errno is EAGAIN, or the input has ended. */
static bool handshake(tls_layer *self)
{
    if (self->layer.is_open)
        return true;
    if (self->ssl == NULL && !begin(self)) {
        end(self, ENOMEM);
        return false;
    }
    int result = mq_ssl.SSL_do_handshake(self->ssl);
    if (result != 1) {
        failed(self, result);
        return false;
    }
    mq_ssl.SSL_set_default_read_buffer_len(self->ssl, READ_AHEAD_BYTES);
    self->layer.is_open = true;
    return true;
}

/* ---- the layer ---- */

static void call_begins(tls_layer *self, int fd)
{
    self->fd = fd;
    self->drained = false;
    mq_ssl.ERR_clear_error(); /* SSL_get_error() reads the queue of the thread */
}

/* Decrypt into `to` until it is full, or all input is used.  Returns the number of bytes. */
static size_t decrypt(tls_layer *self, uint8_t *to, size_t capacity)
{
    size_t count = 0;
    capacity = capacity < INT_MAX ? capacity : INT_MAX;
    while (count < capacity) {
        int result = mq_ssl.SSL_read(self->ssl, to + count, (int)(capacity - count));
        if (result <= 0) {
            failed(self, result);
            return count;
        }
        count += (size_t)result;
        if (self->drained && !mq_ssl.SSL_has_pending(self->ssl))
            return count;
    }
    self->layer.pending = mq_ssl.SSL_has_pending(self->ssl) != 0;
    return count;
}

static ssize_t layer_read(mq_layer *layer, int fd, uint8_t *to, size_t capacity)
{
    tls_layer *self = of(layer);
    layer->pending = false;
    if (self->has_ended)
        return read_end(self);
    call_begins(self, fd);
    size_t count = handshake(self) ? decrypt(self, to, capacity) : 0;
    if (count > 0) {
        layer->pending |= self->has_ended; /* the next read reports the end */
        return (ssize_t)count;
    }
    if (self->has_ended)
        return read_end(self);
    errno = EAGAIN;
    return -1;
}

static ssize_t layer_write(mq_layer *layer, int fd, const uint8_t *from, size_t length)
{
    tls_layer *self = of(layer);
    size_t sent = 0;
    length = length < INT_MAX ? length : INT_MAX;
    if (self->has_failed) {
        errno = EPIPE;
        return -1;
    }
    call_begins(self, fd);
    while (sent < length) { /* each call sends one record */
        int result = mq_ssl.SSL_write(self->ssl, from + sent, (int)(length - sent));
        self->in_record = result <= 0;
        if (result <= 0 && mq_ssl.SSL_get_error(self->ssl, result) == SSL_ERROR_WANT_WRITE) {
            errno = EAGAIN;
            break;
        }
        if (result <= 0) {
            self->has_failed = true;
            errno = EPIPE;
            break;
        }
        sent += (size_t)result;
    }
    return sent > 0 ? (ssize_t)sent : -1;
}

/* Continue the call of SSL_read() or SSL_do_handshake() that had to send first. */
static int layer_flush(mq_layer *layer, int fd)
{
    (void)fd;
    layer->wants_write = false;
    layer->pending = true;
    return 0;
}

static void layer_end(mq_layer *layer, int fd)
{
    tls_layer *self = of(layer);
    if (layer->is_open && !self->has_failed && !self->in_record) {
        call_begins(self, fd);
        mq_ssl.SSL_shutdown(self->ssl); /* sends close_notify */
    }
    if (layer->below != NULL)
        layer->below->calls->end(layer->below, fd);
}

static void layer_free(mq_layer *layer)
{
    tls_layer *self = of(layer);
    if (self->ssl != NULL)
        mq_ssl.SSL_free(self->ssl);
    free(self);
}

static const mq_layer_calls calls = {
    .read = layer_read, .write = layer_write, .flush = layer_flush, .end = layer_end, .free = layer_free};

mq_layer *mq_tls_layer(mq_layer *below, mq_tls_context *const *context)
{
    tls_layer *self = calloc(1, sizeof *self);
    if (self == NULL)
        return NULL;
    self->layer.calls = &calls;
    self->layer.below = below;
    self->context = context;
    return &self->layer;
}

SSL *mq_tls_of(mq_layer *top)
{
    while (top != NULL && top->calls != &calls)
        top = top->below;
    return top == NULL || !top->is_open ? NULL : of(top)->ssl;
}
