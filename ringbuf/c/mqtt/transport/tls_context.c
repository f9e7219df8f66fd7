/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS contexts from files.  Python has checked the files, and describes errors; here an error is rare, for
 * example a file that has changed meanwhile.
 *
 * Sessions are resumed by tickets only: a cache of sessions would take memory for each handshake.
 */
#include "mqtt/transport/tls.h"

#include <stdio.h>
#include <string.h>

/* As the default of Python's `ssl`: forward secrecy, authenticated encryption, no SHA-1.  For TLS 1.2; all
 * cipher suites of TLS 1.3 have these properties. */
#define CIPHERS_1_2 "@SECLEVEL=2:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"

/* OpenSSL would ask the terminal for the passphrase of an encrypted key. */
static int no_passphrase(char *to, int capacity, int writing, void *user)
{
    (void)to, (void)capacity, (void)writing, (void)user;
    return 0;
}

/* Name of the failed step; NULL: done. */
static const char *load_files(SSL_CTX *context, const mq_tls_files *files)
{
    mq_ssl.SSL_CTX_set_default_passwd_cb(context, no_passphrase);
    if (mq_ssl.SSL_CTX_use_certificate_chain_file(context, files->certificate) != 1)
        return "certificate";
    if (mq_ssl.SSL_CTX_use_PrivateKey_file(context, files->key, SSL_FILETYPE_PEM) != 1 ||
        mq_ssl.SSL_CTX_check_private_key(context) != 1)
        return "key";
    if (files->client_ca == NULL)
        return NULL;
    int must = files->require_client_certificate ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0;
    mq_ssl.SSL_CTX_set_verify(context, SSL_VERIFY_PEER | must, NULL);
    return mq_ssl.SSL_CTX_load_verify_locations(context, files->client_ca, NULL) == 1 ? NULL : "authorities";
}

/* True if the library understands the settings: the version is read back. */
static bool configure(SSL_CTX *context, int version_min)
{
    static const uint8_t session_context[] = "brim";
    const long mode = SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                      SSL_MODE_RELEASE_BUFFERS;
    /* Renegotiation costs the server more than the client, and no client needs it.  Compression leaks plain
     * text. */
    mq_ssl.SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                            SSL_OP_CIPHER_SERVER_PREFERENCE);
    mq_ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_READ_AHEAD, 1, NULL);
    mq_ssl.SSL_CTX_set_num_tickets(context, 1); /* a client has one connection */
    mq_ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, NULL);
    return (mq_ssl.SSL_CTX_ctrl(context, SSL_CTRL_MODE, mode, NULL) & mode) == mode &&
           mq_ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, version_min, NULL) == 1 &&
           mq_ssl.SSL_CTX_ctrl(context, SSL_CTRL_GET_MIN_PROTO_VERSION, 0, NULL) == version_min &&
           mq_ssl.SSL_CTX_set_cipher_list(context, CIPHERS_1_2) == 1 &&
           mq_ssl.SSL_CTX_set_session_id_context(context, session_context, sizeof session_context) == 1;
}

mq_tls_context *mq_tls_context_new(const mq_tls_files *files, char reason[MQ_TLS_REASON_BYTES])
{
    mq_ssl.ERR_clear_error();
    SSL_CTX *context = mq_ssl.SSL_CTX_new(mq_ssl.TLS_server_method());
    bool is_configured = context != NULL && configure(context, files->version_min);
    const char *failed = is_configured ? load_files(context, files) : "settings";
    if (failed == NULL)
        return context;
    snprintf(reason, MQ_TLS_REASON_BYTES, "%s: %s", failed, mq_openssl_reason());
    mq_ssl.ERR_clear_error();
    mq_ssl.SSL_CTX_free(context); /* accepts NULL */
    return NULL;
}

void mq_tls_context_free(mq_tls_context *context)
{
    mq_ssl.SSL_CTX_free(context);
}

void mq_tls_context_use(mq_listener *listener, mq_tls_context *context)
{
    /* pairs with the acquire in begin() of tls_layer.c: the context is complete */
    __atomic_store_n(&listener->tls, context, __ATOMIC_RELEASE);
}
