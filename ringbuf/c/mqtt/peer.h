/* SPDX-License-Identifier: Apache-2.0
 *
 * Peer: where a connection comes from.
 */
#ifndef MQ_PEER_H
#define MQ_PEER_H

#include <stdint.h>

struct sockaddr_storage;

typedef struct mq_peer { /* as mq_connection has it */
    uint8_t address[16]; /* in the order of the network; of IPv4 the first 4 */
    uint16_t port;
    uint8_t family;      /* AF_INET, AF_INET6, or of a socket without an address */
} mq_peer;

/* An IPv4 client of a dual-stack listener is an IPv4 client. */
mq_peer mq_peer_of(const struct sockaddr_storage *address);

#endif
