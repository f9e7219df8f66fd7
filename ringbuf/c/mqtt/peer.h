/* SPDX-License-Identifier: Apache-2.0
 *
 * Peer: remote address of a connection.
 */
#ifndef BRIM_PEER_H
#define BRIM_PEER_H

#include "mqtt/mqtt.h"

struct sockaddr_storage;

typedef struct mq_peer { /* in the form of mq_connection */
    uint8_t address[16]; /* in network order; IPv4 uses the first 4 */
    uint16_t port;
    uint8_t family;      /* AF_INET, AF_INET6, or the family of a socket without an address */
} mq_peer;

/* Peer from a socket address.  An IPv4 client of a dual-stack listener becomes an IPv4 peer. */
mq_peer mq_peer_of(const struct sockaddr_storage *address);

/* Write address and port of the peer of a connection: `127.0.0.1:50123`, `[::1]:50123`, or "" without an
 * address. */
void mq_peer_text(const mq_connection *connection, char to[MQ_PEER_BYTES]);

#endif
