/* SPDX-License-Identifier: Apache-2.0
 *
 * WebSocket as a layer (layer.h): the HTTP request and its answer pass unchanged, then frames.
 *
 * The parser passes the request to Python, which decides about it (MQ_EVENT_UPGRADE).
 */
#ifndef BRIM_WEBSOCKET_LAYER_H
#define BRIM_WEBSOCKET_LAYER_H

#include "mqtt/mqtt.h"
#include "mqtt/transport/layer.h"

/* Create the layer of a connection.  `connect_max`: longest message before the first answer of the broker;
 * `packet_max`: longest packet after it.  NULL: no memory. */
mq_layer *mq_websocket_layer(mq_layer *below, uint32_t connect_max, uint32_t packet_max);

/* Handle `length` bytes of input of a connection whose request is not complete or not answered. */
void mq_websocket_request(mq_engine *engine, mq_connection *connection, const uint8_t *bytes,
                          uint32_t length);

#endif
