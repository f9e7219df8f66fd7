/* SPDX-License-Identifier: Apache-2.0
 *
 * The certificate that a client has shown, for Python.  OpenSSL has verified it, otherwise the handshake
 * fails.
 *
 * A name with a zero byte is ignored: a program that reads it could cut it.
 */
#include "mqtt/transport/tls.h"

static X509 *certificate_of(const mq_engine *engine, uint64_t handle)
{
    const mq_connection *connection = mq_slab_get(&engine->connections, handle);
    SSL *ssl = connection == NULL ? NULL : mq_tls_of(connection->layer);
    return ssl == NULL ? NULL : mq_ssl.SSL_get1_peer_certificate(ssl);
}

uint32_t mq_engine_certificate(const mq_engine *engine, uint64_t handle, uint8_t *to, uint32_t capacity)
{
    X509 *certificate = certificate_of(engine, handle);
    if (certificate == NULL)
        return 0;
    int length = mq_ssl.i2d_X509(certificate, NULL);
    if (length > 0 && (uint32_t)length <= capacity)
        mq_ssl.i2d_X509(certificate, &to);
    mq_ssl.X509_free(certificate);
    return length > 0 ? (uint32_t)length : 0;
}

/* Write a name to `to` if it fits.  Returns its length; 0: it is empty or has a zero byte. */
static uint32_t write_name(const uint8_t *name, int length, uint8_t *to, uint32_t capacity)
{
    if (name == NULL || length <= 0 || memchr(name, 0, (size_t)length) != NULL)
        return 0;
    if ((uint32_t)length <= capacity)
        memcpy(to, name, (size_t)length);
    return (uint32_t)length;
}

static uint32_t common_name(const X509 *certificate, uint8_t *to, uint32_t capacity)
{
    X509_NAME *subject = mq_ssl.X509_get_subject_name(certificate);
    uint32_t written = 0;
    for (int i = -1; written == 0;) {
        i = mq_ssl.X509_NAME_get_index_by_NID(subject, NID_commonName, i);
        if (i < 0)
            return 0;
        uint8_t *name = NULL;
        int length = mq_ssl.ASN1_STRING_to_UTF8(
            &name, mq_ssl.X509_NAME_ENTRY_get_data(mq_ssl.X509_NAME_get_entry(subject, i)));
        written = write_name(name, length, to, capacity);
        mq_ssl.CRYPTO_free(name, __FILE__, __LINE__);
    }
    return written;
}

static bool is_ascii(const uint8_t *name, int length)
{
    for (int i = 0; i < length; i++)
        if (name[i] > 0x7f)
            return false;
    return true;
}

static uint32_t alternative_name(const X509 *certificate, uint8_t *to, uint32_t capacity)
{
    GENERAL_NAMES *names = mq_ssl.X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    if (names == NULL)
        return 0;
    uint32_t written = 0;
    for (int i = 0; written == 0 && i < mq_ssl.OPENSSL_sk_num(names); i++) {
        int kind = -1;
        const ASN1_STRING *name = mq_ssl.GENERAL_NAME_get0_value(mq_ssl.OPENSSL_sk_value(names, i), &kind);
        if (kind != GEN_DNS && kind != GEN_EMAIL && kind != GEN_URI)
            continue;
        const uint8_t *bytes = mq_ssl.ASN1_STRING_get0_data(name);
        int length = mq_ssl.ASN1_STRING_length(name);
        if (is_ascii(bytes, length))
            written = write_name(bytes, length, to, capacity);
    }
    mq_ssl.GENERAL_NAMES_free(names);
    return written;
}

uint32_t mq_engine_certificate_name(const mq_engine *engine, uint64_t handle, uint8_t *to, uint32_t capacity)
{
    X509 *certificate = certificate_of(engine, handle);
    if (certificate == NULL)
        return 0;
    uint32_t written = common_name(certificate, to, capacity);
    if (written == 0)
        written = alternative_name(certificate, to, capacity);
    mq_ssl.X509_free(certificate);
    return written;
}
