/* SPDX-License-Identifier: Apache-2.0
 *
 * PROXY header as a layer (layer.h): reads a header of version 2 and no byte behind it, because that byte
 * belongs to the next layer.
 *
 * The parser passes the complete header to Python, which reads the address in it (MQ_EVENT_PROXY).  The
 * answer replaces this layer by those of the listener.
 */
#ifndef BRIM_MQTT_PROXY_LAYER_H
#define BRIM_MQTT_PROXY_LAYER_H

#include "mqtt/mqtt.h"
#include "mqtt/transport/layer.h"

/* Create the layer of a connection.  NULL: no memory. */
mq_layer *mq_proxy_layer(void);

/* Handle the first `length` bytes of a connection, whose header is perhaps complete. */
void mq_proxy_header(mq_engine *engine, mq_connection *connection, uint32_t length);

#endif
