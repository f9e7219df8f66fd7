/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS as a layer (layer.h): the server's side, by OpenSSL (openssl.h).
 *
 * tls_context.c makes contexts from files, tls_layer.c serves a connection, tls_certificate.c reads the
 * certificate of its client.
 */
#ifndef BRIM_MQTT_TLS_H
#define BRIM_MQTT_TLS_H

#include "mqtt/mqtt.h"
#include "mqtt/transport/layer.h"
#include "mqtt/transport/openssl.h"
#include "mqtt/transport/tls_api.h"

/* Prepare for connections, once, after the functions were found.  False: no memory. */
bool mq_tls_prepare(void);

/* Create the layer of a connection.  `context` is read with the first input of the client, so that a
 * connection that sends nothing costs little memory; it must be valid then.  NULL: no memory. */
mq_layer *mq_tls_layer(mq_layer *below, mq_tls_context *const *context);

/* The TLS connection among the layers from `top` down, after its handshake.  NULL: none. */
SSL *mq_tls_of(mq_layer *top);

#endif
