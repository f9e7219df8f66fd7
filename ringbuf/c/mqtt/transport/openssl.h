/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenSSL as it is found at run time: 1.1.1 and 3.  Building needs no headers of it.
 *
 * The library is the one that Python's `ssl` has loaded, so a process has one OpenSSL.  Only functions are
 * used, no layout of a structure.  mq_tls_load() finds all of them or reports the first that is missing.
 */
#ifndef BRIM_MQTT_OPENSSL_H
#define BRIM_MQTT_OPENSSL_H

#include <stddef.h>
#include <stdint.h>

typedef struct mq_tls_context SSL_CTX; /* the same as Python sees it */
typedef struct ssl_st SSL;
typedef struct ssl_method_st SSL_METHOD;
typedef struct bio_st BIO;
typedef struct bio_method_st BIO_METHOD;
typedef struct x509_st X509;
typedef struct X509_name_st X509_NAME;
typedef struct X509_name_entry_st X509_NAME_ENTRY;
typedef struct asn1_string_st ASN1_STRING;
typedef struct stack_st GENERAL_NAMES;
typedef int (*mq_passphrase)(char *to, int capacity, int writing, void *user);
typedef int (*mq_verify)(int ok, void *store);

/* Macros of OpenSSL's headers. */
enum {
    SSL_CTRL_MODE = 33,
    SSL_CTRL_SET_READ_AHEAD = 41,
    SSL_CTRL_SET_SESS_CACHE_MODE = 44,
    SSL_CTRL_SET_MIN_PROTO_VERSION = 123,
    SSL_CTRL_GET_MIN_PROTO_VERSION = 130,
    SSL_MODE_ENABLE_PARTIAL_WRITE = 1,
    SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER = 2,
    SSL_MODE_RELEASE_BUFFERS = 16,
    SSL_OP_NO_COMPRESSION = 1 << 17,
    SSL_OP_CIPHER_SERVER_PREFERENCE = 1 << 22,
    SSL_OP_NO_RENEGOTIATION = 1 << 30,
    SSL_SESS_CACHE_OFF = 0,
    SSL_VERIFY_PEER = 1,
    SSL_VERIFY_FAIL_IF_NO_PEER_CERT = 2,
    SSL_FILETYPE_PEM = 1,
    SSL_ERROR_WANT_READ = 2,
    SSL_ERROR_WANT_WRITE = 3,
    SSL_ERROR_SYSCALL = 5,
    SSL_ERROR_ZERO_RETURN = 6,
    BIO_TYPE_SOURCE_SINK = 0x400,
    BIO_FLAGS_READ = 1,
    BIO_FLAGS_WRITE = 2,
    BIO_FLAGS_RWS = 7,
    BIO_FLAGS_SHOULD_RETRY = 8,
    BIO_CTRL_EOF = 2,
    BIO_CTRL_FLUSH = 11,
    NID_commonName = 13,
    NID_subject_alt_name = 85,
    GEN_EMAIL = 1,
    GEN_DNS = 2,
    GEN_URI = 6
};

/* F(result, name, arguments) */
#define MQ_OPENSSL_FUNCTIONS(F)                                                    \
    F(const SSL_METHOD *, TLS_server_method, (void))                               \
    F(SSL_CTX *, SSL_CTX_new, (const SSL_METHOD *))                                \
    F(void, SSL_CTX_free, (SSL_CTX *))                                             \
    F(long, SSL_CTX_ctrl, (SSL_CTX *, int, long, void *))                          \
    F(unsigned long, SSL_CTX_set_options, (SSL_CTX *, unsigned long))              \
    F(int, SSL_CTX_set_cipher_list, (SSL_CTX *, const char *))                     \
    F(void, SSL_CTX_set_default_passwd_cb, (SSL_CTX *, mq_passphrase))             \
    F(int, SSL_CTX_use_certificate_chain_file, (SSL_CTX *, const char *))          \
    F(int, SSL_CTX_use_PrivateKey_file, (SSL_CTX *, const char *, int))            \
    F(int, SSL_CTX_check_private_key, (const SSL_CTX *))                           \
    F(int, SSL_CTX_load_verify_locations, (SSL_CTX *, const char *, const char *)) \
    F(void, SSL_CTX_set_verify, (SSL_CTX *, int, mq_verify))                       \
    F(int, SSL_CTX_set_session_id_context, (SSL_CTX *, const uint8_t *, unsigned)) \
    F(int, SSL_CTX_set_num_tickets, (SSL_CTX *, size_t))                           \
    F(SSL *, SSL_new, (SSL_CTX *))                                                 \
    F(void, SSL_free, (SSL *))                                                     \
    F(void, SSL_set_bio, (SSL *, BIO *, BIO *))                                    \
    F(void, SSL_set_accept_state, (SSL *))                                         \
    F(void, SSL_set_default_read_buffer_len, (SSL *, size_t))                      \
    F(int, SSL_do_handshake, (SSL *))                                              \
    F(int, SSL_read, (SSL *, void *, int))                                         \
    F(int, SSL_write, (SSL *, const void *, int))                                  \
    F(int, SSL_shutdown, (SSL *))                                                  \
    F(int, SSL_has_pending, (const SSL *))                                         \
    F(int, SSL_get_error, (const SSL *, int))                                      \
    F(int, BIO_get_new_index, (void))                                              \
    F(BIO_METHOD *, BIO_meth_new, (int, const char *))                             \
    F(int, BIO_meth_set_read, (BIO_METHOD *, int (*)(BIO *, char *, int)))         \
    F(int, BIO_meth_set_write, (BIO_METHOD *, int (*)(BIO *, const char *, int)))  \
    F(int, BIO_meth_set_ctrl, (BIO_METHOD *, long (*)(BIO *, int, long, void *)))  \
    F(BIO *, BIO_new, (const BIO_METHOD *))                                        \
    F(int, BIO_free, (BIO *))                                                      \
    F(void, BIO_set_data, (BIO *, void *))                                         \
    F(void *, BIO_get_data, (BIO *))                                               \
    F(void, BIO_set_init, (BIO *, int))                                            \
    F(void, BIO_set_flags, (BIO *, int))                                           \
    F(void, BIO_clear_flags, (BIO *, int))                                         \
    F(void, ERR_clear_error, (void))                                               \
    F(unsigned long, ERR_peek_error, (void))                                       \
    F(const char *, ERR_reason_error_string, (unsigned long))                      \
    F(X509 *, SSL_get1_peer_certificate, (const SSL *))                            \
    F(void, X509_free, (X509 *))                                                   \
    F(int, i2d_X509, (const X509 *, uint8_t **))                                   \
    F(X509_NAME *, X509_get_subject_name, (const X509 *))                          \
    F(int, X509_NAME_get_index_by_NID, (X509_NAME *, int, int))                    \
    F(X509_NAME_ENTRY *, X509_NAME_get_entry, (const X509_NAME *, int))            \
    F(ASN1_STRING *, X509_NAME_ENTRY_get_data, (const X509_NAME_ENTRY *))          \
    F(int, ASN1_STRING_to_UTF8, (uint8_t **, const ASN1_STRING *))                 \
    F(const uint8_t *, ASN1_STRING_get0_data, (const ASN1_STRING *))               \
    F(int, ASN1_STRING_length, (const ASN1_STRING *))                              \
    F(void *, X509_get_ext_d2i, (const X509 *, int, int *, int *))                 \
    F(int, OPENSSL_sk_num, (const GENERAL_NAMES *))                                \
    F(void *, OPENSSL_sk_value, (const GENERAL_NAMES *, int))                      \
    F(void *, GENERAL_NAME_get0_value, (const void *, int *))                      \
    F(void, GENERAL_NAMES_free, (GENERAL_NAMES *))                                 \
    F(void, CRYPTO_free, (void *, const char *, int))

#define MQ_OPENSSL_FIELD(result, name, arguments) result(*name) arguments;
typedef struct mq_openssl {
    MQ_OPENSSL_FUNCTIONS(MQ_OPENSSL_FIELD)
} mq_openssl;
#undef MQ_OPENSSL_FIELD

/* Filled by mq_tls_load(), before any other function of TLS is used. */
extern mq_openssl mq_ssl;

/* Text of the oldest error of this thread, in static memory. */
const char *mq_openssl_reason(void);

#endif
