/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS records through the TLS layer, over a pipe in memory.  For libFuzzer.
 *
 *   input   byte 0: 0 raw bytes of a client that does not know TLS; otherwise operations of a client that
 *           does: pairs of a code and an argument, for operate()
 *
 * The client is OpenSSL's own.  Its records are cut, changed, repeated or lost on the way.  Each side sends
 * bytes that count up, so that each side knows what it must receive: as much of the beginning as arrives.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mqtt/transport/tls.h"
#include "must.h"

#define WIRE_BYTES (1u << 20)
#define TURNS 8

static const char pem[] = "-----BEGIN PRIVATE KEY-----\n"
                          "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgv3p7mJKoKruXw9/L\n"
                          "g6MsYmDyMxwIqSPhxE4upt8sXTehRANCAASGhp4cTK1A/8J9betrS+QZdI1Flq5t\n"
                          "MLwgcEt3R8ytgKMv+BER3crCwNDg4ZXGnQ2xZdGsIesYDdzp+3u5e/rA\n"
                          "-----END PRIVATE KEY-----\n"
                          "-----BEGIN CERTIFICATE-----\n"
                          "MIIBdTCCARugAwIBAgIUZvkhhhH1BChlLfyRexH2EuxKkyUwCgYIKoZIzj0EAwIw\n"
                          "DzENMAsGA1UEAwwEZnV6ejAgFw0yNjExMjMxNDEzNDlaGA8yMTI2MTAzMDE0MTM0\n"
                          "OVowDzENMAsGA1UEAwwEZnV6ejBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABIaG\n"
                          "nhxMrUD/wn1t62tL5Bl0jUWWrm0wvCBwS3dHzK2Aoy/4ERHdysLA0ODhlcadDbFl\n"
                          "0awh6xgN3On7e7l7+sCjUzBRMB0GA1UdDgQWBBSmjPmm4NNHLaAJue5WqkZdtfjP\n"
                          "TzAfBgNVHSMEGDAWgBSmjPmm4NNHLaAJue5WqkZdtfjPTzAPBgNVHRMBAf8EBTAD\n"
                          "AQH/MAoGCCqGSM49BAMCA0gAMEUCIQDSmiJYfPCbDeAVc+5O1Q00++6qVvGqgd96\n"
                          "H3vBLevR4QIgVlWNKkZb2P+kAAbRPAn6KVmNyLycolsc8PZlQEFu0B0=\n"
                          "-----END CERTIFICATE-----\n";

static struct { /* what the layer does not need of OpenSSL */
    const SSL_METHOD *(*TLS_client_method)(void);
    void (*SSL_set_connect_state)(SSL *);
    int (*SSL_key_update)(SSL *, int);
    const BIO_METHOD *(*BIO_s_mem)(void);
    int (*BIO_read)(BIO *, void *, int);
    int (*BIO_write)(BIO *, const void *, int);
} ssl;

static mq_tls_context *context;
static SSL_CTX *client_context;

typedef struct wire { /* bytes on the way to one side */
    uint8_t *bytes;
    size_t start, end;
    bool is_closed;
} wire;

typedef struct play {
    mq_layer pipe; /* first: below the server's layer */
    wire to_server, to_client;
    size_t piece, capacity; /* of a read, and for all writes of a call of the server */
    mq_layer *server;
    SSL *client;
    BIO *client_in, *client_out;
    uint32_t sent, received;       /* plain bytes from the client to the server */
    uint32_t offered, taken, seen; /* from the server to the client */
    bool is_over;
    bool is_altered; /* the server may not get what the client sends */
} play;

/* ---- the pipe, as a layer ---- */

static ssize_t pipe_read(mq_layer *layer, int fd, uint8_t *to, size_t capacity)
{
    (void)fd;
    play *it = (play *)(void *)layer;
    wire *from = &it->to_server;
    size_t count = from->end - from->start;
    count = count < capacity ? count : capacity;
    count = count < it->piece ? count : it->piece;
    if (count == 0 && !from->is_closed) {
        errno = EAGAIN;
        return -1;
    }
    memcpy(to, from->bytes + from->start, count);
    from->start += count;
    return (ssize_t)count;
}

static ssize_t pipe_write(mq_layer *layer, int fd, const uint8_t *from, size_t length)
{
    (void)fd;
    play *it = (play *)(void *)layer;
    size_t left = WIRE_BYTES - it->to_client.end, count = length < it->capacity ? length : it->capacity;
    count = count < left ? count : left;
    if (count == 0) {
        errno = EAGAIN;
        return -1;
    }
    memcpy(it->to_client.bytes + it->to_client.end, from, count);
    it->to_client.end += count;
    it->capacity -= count;
    return (ssize_t)count;
}

static void pipe_end(mq_layer *layer, int fd)
{
    (void)layer, (void)fd;
}

static const mq_layer_calls pipe_calls = {.read = pipe_read, .write = pipe_write, .end = pipe_end};

static void put(wire *to, const uint8_t *bytes, size_t count)
{
    if (count > WIRE_BYTES - to->end)
        count = WIRE_BYTES - to->end;
    memcpy(to->bytes + to->end, bytes, count);
    to->end += count;
}

/* ---- the server ---- */

/* As the loop: read while there is input in the pipe or in the layer. */
static bool is_readable(const play *it)
{
    const wire *from = &it->to_server;
    return from->start < from->end || from->is_closed || it->server->pending || it->server->wants_write;
}

static void server_reads(play *it, size_t capacity)
{
    uint8_t *to = malloc(capacity);
    for (int turn = 0; turn < TURNS && is_readable(it); turn++) {
        if (it->server->wants_write)
            it->server->calls->flush(it->server, 0);
        ssize_t count = mq_layer_read(it->server, 0, to, capacity);
        must(count <= (ssize_t)capacity, "no more than there is room for");
        for (ssize_t i = 0; i < count; i++)
            must(to[i] == (uint8_t)it->received++, "the server gets what was sent, from the beginning");
        must(it->received <= it->sent, "the server gets nothing that was not sent");
        if (count == 0 || (count < 0 && errno != EAGAIN)) {
            must(!it->is_over || count == 0 || errno == EPROTO || errno == ECONNRESET, "an end stays one");
            must(count == 0 || errno == EPROTO || errno == ECONNRESET, "an error is one of two");
            must(errno != EPROTO || count == 0 || it->server->reason != NULL, "a violation has a reason");
            it->is_over = true;
        } else {
            must(!it->is_over, "nothing comes after the end");
        }
    }
    free(to);
}

/* Offer more bytes, in front of them those that were not taken. */
static void server_writes(play *it, uint32_t more)
{
    it->offered += more;
    uint32_t length = it->offered - it->taken;
    uint8_t *from = malloc(length + 1);
    for (uint32_t i = 0; i < length; i++)
        from[i] = (uint8_t)(it->taken + i);
    ssize_t count = length == 0 ? 0 : mq_layer_write(it->server, 0, from, length);
    must(count <= (ssize_t)length, "no more is taken than was offered");
    it->taken += count > 0 ? (uint32_t)count : 0;
    free(from);
}

/* ---- the client ---- */

static void client_sends(play *it)
{
    uint8_t part[4096];
    for (int count; (count = ssl.BIO_read(it->client_out, part, sizeof part)) > 0;)
        put(&it->to_server, part, (size_t)count);
}

static void client_reads(play *it)
{
    wire *from = &it->to_client;
    uint8_t part[4096];
    if (from->end > from->start)
        ssl.BIO_write(it->client_in, from->bytes + from->start, (int)(from->end - from->start));
    from->start = from->end = 0;
    mq_ssl.ERR_clear_error();
    for (int count; (count = mq_ssl.SSL_read(it->client, part, sizeof part)) > 0;)
        for (int i = 0; i < count; i++)
            must(part[i] == (uint8_t)it->seen++, "the client gets what was written, from the beginning");
    must(it->seen <= it->offered, "the client gets nothing that was not written");
    client_sends(it);
}

static void client_writes(play *it, uint32_t count)
{
    uint8_t from[256];
    for (uint32_t i = 0; i < count; i++)
        from[i] = (uint8_t)(it->sent + i);
    mq_ssl.ERR_clear_error();
    if (count > 0 && mq_ssl.SSL_write(it->client, from, (int)count) > 0)
        it->sent += count;
    client_sends(it);
}

/* ---- what happens on the way ---- */

static void change(play *it, uint8_t place, uint8_t bits)
{
    wire *to = &it->to_server;
    size_t count = to->end - to->start;
    if (count == 0)
        return;
    to->bytes[to->start + place % count] ^= bits;
    it->is_altered = true;
}

static void repeat(play *it)
{
    wire *to = &it->to_server;
    size_t count = to->end - to->start;
    uint8_t *again = malloc(count + 1);
    memcpy(again, to->bytes + to->start, count);
    put(to, again, count);
    free(again);
    it->is_altered |= count > 0;
}

static void operate(play *it, uint8_t code, uint8_t argument)
{
    static const uint16_t rooms[] = {1, 7, 300, 20000};
    it->capacity = code & 0x80 ? argument : WIRE_BYTES;
    it->piece = code & 0x40 ? 1u + argument : WIRE_BYTES;
    switch (code % 12) {
    case 0:
    case 1:
        client_writes(it, argument);
        break;
    case 2:
        server_reads(it, rooms[argument % 4]);
        break;
    case 3:
        client_reads(it);
        break;
    case 4:
        server_writes(it, argument * 100u);
        break;
    case 5:
        change(it, argument, 1u << (argument % 8));
        break;
    case 6:
        repeat(it);
        break;
    case 7:
        it->is_altered |= it->to_server.start < it->to_server.end;
        it->to_server.end = it->to_server.start;
        break;
    case 8:
        ssl.SSL_key_update(it->client, argument & 1);
        client_writes(it, 1);
        break;
    case 9:
        put(&it->to_server, (const uint8_t[]){argument, 3, 3, 0, argument}, 5);
        it->is_altered = true;
        break;
    case 10:
        mq_ssl.SSL_shutdown(it->client);
        client_sends(it);
        break;
    default:
        it->to_server.is_closed |= argument < 16;
    }
}

static void operations(play *it, const uint8_t *data, size_t size)
{
    it->capacity = it->piece = WIRE_BYTES;
    for (int turn = 0; turn < TURNS && !it->server->is_open; turn++) {
        client_reads(it);
        server_reads(it, 20000);
    }
    must(it->server->is_open, "an honest handshake is accepted");
    client_reads(it);
    for (size_t i = 0; i + 1 < size; i += 2)
        operate(it, data[i], data[i + 1]);
    it->capacity = it->piece = WIRE_BYTES;
    if (it->is_altered || it->is_over || it->to_server.is_closed)
        return;
    while (is_readable(it) && !it->is_over)
        server_reads(it, 20000);
    must(it->received == it->sent || it->is_over, "all arrives that was not altered");
}

/* ---- the target ---- */

static const char *file_of(const char *text)
{
    static char path[64];
    int fd = memfd_create("pem", 0);
    must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), "there is a file in memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

static void find(void *library, const char *name, void *to)
{
    void *found = dlsym(library, name);
    must(found != NULL, name);
    memcpy(to, &found, sizeof found);
}

int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    (void)count, (void)arguments;
    char reason[MQ_TLS_REASON_BYTES];
    must(mq_tls_load(NULL) == NULL, "OpenSSL is found");
    void *library = dlopen("libssl.so.3", RTLD_NOW);
    library = library == NULL ? dlopen("libssl.so.1.1", RTLD_NOW) : library;
    find(library, "TLS_client_method", &ssl.TLS_client_method);
    find(library, "SSL_set_connect_state", &ssl.SSL_set_connect_state);
    find(library, "SSL_key_update", &ssl.SSL_key_update);
    find(library, "BIO_s_mem", &ssl.BIO_s_mem);
    find(library, "BIO_read", &ssl.BIO_read);
    find(library, "BIO_write", &ssl.BIO_write);
    const char *file = file_of(pem);
    const mq_tls_files files = {.certificate = file, .key = file, .version_min = 0x0303};
    context = mq_tls_context_new(&files, reason);
    must(context != NULL, reason);
    client_context = mq_ssl.SSL_CTX_new(ssl.TLS_client_method());
    must(client_context != NULL, "there is a client");
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    play it = {.pipe = {.calls = &pipe_calls, .is_open = true}, .capacity = WIRE_BYTES, .piece = WIRE_BYTES};
    it.to_server.bytes = malloc(WIRE_BYTES);
    it.to_client.bytes = malloc(WIRE_BYTES);
    it.server = mq_tls_layer(&it.pipe, &context);
    it.client = mq_ssl.SSL_new(client_context);
    it.client_in = mq_ssl.BIO_new(ssl.BIO_s_mem());
    it.client_out = mq_ssl.BIO_new(ssl.BIO_s_mem());
    must(it.server != NULL && it.client != NULL && it.client_in != NULL, "there is memory");
    mq_ssl.SSL_set_bio(it.client, it.client_in, it.client_out);
    ssl.SSL_set_connect_state(it.client);
    if (data[0] == 0) {
        it.piece = size > 1 ? 1u + data[1] : 1;
        put(&it.to_server, data + 1, size - 1);
        for (size_t i = 0; i < size; i++)
            server_reads(&it, 300);
        must(!it.server->is_open && it.received == 0, "without TLS nothing is accepted");
    } else {
        operations(&it, data + 1, size - 1);
    }
    mq_ssl.SSL_free(it.client);
    it.server->calls->end(it.server, 0);
    it.server->calls->free(it.server);
    free(it.to_server.bytes);
    free(it.to_client.bytes);
    return 0;
}
