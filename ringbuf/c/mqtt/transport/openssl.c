/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenSSL: see openssl.h.
 */
#include "mqtt/transport/openssl.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "mqtt/transport/tls.h"

mq_openssl mq_ssl;

typedef struct wanted_function {
    const char *name;
    size_t offset;
} wanted_function;

#define WANTED(result, name, arguments) {#name, offsetof(mq_openssl, name)},
static const wanted_function functions[] = {MQ_OPENSSL_FUNCTIONS(WANTED)};

static void *find(void *library, const char *name)
{
    void *loaded = dlsym(library, name);
    if (loaded == NULL && strcmp(name, "SSL_get1_peer_certificate") == 0)
        loaded = dlsym(library, "SSL_get_peer_certificate"); /* its name in 1.1.1 */
    return loaded;
}

/* Name of a function that the library does not have; NULL: all are found. */
static const char *resolve(void *library)
{
    mq_openssl loaded;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = find(library, functions[i].name);
        if (function == NULL)
            return functions[i].name;
        memcpy((uint8_t *)&loaded + functions[i].offset, &function, sizeof function);
    }
    mq_ssl = loaded;
    return NULL;
}

/* Documented in tls_api.h. */
const char *mq_tls_load(const char *module)
{
    static char reason[128];
    const char *names[] = {module, NULL, "libssl.so.3", "libssl.so.1.1"};
    const char *missing = "libssl";
    if (mq_ssl.SSL_CTX_new != NULL)
        return NULL;
    for (size_t i = module == NULL; i < sizeof names / sizeof *names; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library == NULL)
            continue;
        missing = resolve(library);
        if (missing == NULL)
            return mq_tls_prepare() ? NULL : "no memory"; /* `library` stays loaded as long as the process */
        dlclose(library);
    }
    snprintf(reason, sizeof reason, "%s not found in libssl.so.3 or libssl.so.1.1", missing);
    return reason;
}

const char *mq_openssl_reason(void)
{
    const char *reason = mq_ssl.ERR_reason_error_string(mq_ssl.ERR_peek_error());
    return reason == NULL ? "TLS error" : reason;
}
