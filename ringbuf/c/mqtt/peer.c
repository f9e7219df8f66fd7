/* SPDX-License-Identifier: Apache-2.0
 *
 * Peer: see peer.h.  No system calls.
 */
#include "mqtt/peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>

mq_peer mq_peer_of(const struct sockaddr_storage *address)
{
    mq_peer peer = {.family = (uint8_t)address->ss_family};
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *ip = (const struct sockaddr_in *)(const void *)address;
        peer.port = ntohs(ip->sin_port);
        memcpy(peer.address, &ip->sin_addr, sizeof ip->sin_addr);
    } else if (address->ss_family == AF_INET6) {
        const struct sockaddr_in6 *ip = (const struct sockaddr_in6 *)(const void *)address;
        bool mapped = IN6_IS_ADDR_V4MAPPED(&ip->sin6_addr);
        peer.port = ntohs(ip->sin6_port);
        peer.family = mapped ? AF_INET : AF_INET6;
        memcpy(peer.address, ip->sin6_addr.s6_addr + (mapped ? 12 : 0), mapped ? 4 : 16);
    }
    return peer;
}

void mq_peer_text(const mq_connection *connection, char to[MQ_PEER_BYTES])
{
    char host[INET6_ADDRSTRLEN];
    int family = connection->address_family;
    to[0] = '\0';
    if ((family == AF_INET || family == AF_INET6) &&
        inet_ntop(family, connection->address, host, sizeof host) != NULL)
        snprintf(to, MQ_PEER_BYTES, family == AF_INET ? "%s:%u" : "[%s]:%u", host,
                 (unsigned)connection->port);
}
