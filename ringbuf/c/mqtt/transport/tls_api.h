/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS as Python sees it: contexts from files, and the certificates of clients.
 *
 * Read by the C compiler and by cffi's cdef(), as ringbuf_api.h: declarations only.
 */

enum {
    MQ_TLS_REASON_BYTES = 128
};

typedef struct mq_tls_context mq_tls_context; /* an SSL_CTX of OpenSSL */

typedef struct mq_tls_files { /* paths of PEM files */
    const char *certificate;
    const char *key;
    const char *client_ca; /* NULL: clients show no certificate */
    int require_client_certificate;
    int version_min; /* 0x0303: TLS 1.2; 0x0304: TLS 1.3 */
} mq_tls_files;

/* Find the functions of OpenSSL, first in the library that `module`, a file, has loaded; NULL: in this
 * process.  Returns NULL, or the reason of the failure in static memory.  Before the other functions. */
const char *mq_tls_load(const char *module);

/* Create a context.  NULL: with `reason`. */
mq_tls_context *mq_tls_context_new(const mq_tls_files *files, char reason[MQ_TLS_REASON_BYTES]);

/* Free a context.  Connections that it has begun stay. */
void mq_tls_context_free(mq_tls_context *context);

/* Let the connections that a listener accepts later use `context`.  For any thread. */
void mq_tls_context_use(mq_listener *listener, mq_tls_context *context);

/* Write the certificate of connection `handle` in DER to `to`, if it fits in `capacity`.  Returns its length;
 * 0: the client has shown none.  On the polling thread. */
uint32_t mq_engine_certificate(const mq_engine *engine, uint64_t handle, uint8_t *to, uint32_t capacity);

/* Likewise the name in that certificate, in UTF-8 without a zero byte: its common name, otherwise the first
 * alternative name that is a DNS name, an e-mail address or a URI. */
uint32_t mq_engine_certificate_name(const mq_engine *engine, uint64_t handle, uint8_t *to, uint32_t capacity);
