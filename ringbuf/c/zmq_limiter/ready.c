/* SPDX-License-Identifier: Apache-2.0
 *
 * The owner of a link in the peer's READY.  libzmq accepts READY without the flag of a command, too.
 */
#include "zmq_limiter/limiter.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LONG 2
#define COMMAND 4
#define SHORT_HEADER_BYTES 2u
#define USER_ID_BYTES (1u + 7u + 4u) /* a property without its value */

static const uint8_t NAME[] = {5, 'R', 'E', 'A', 'D', 'Y'};

void zl_owner_name(uint64_t owner, char name[static ZL_OWNER_MAX_BYTES])
{
    uint64_t address = owner & ~ZL_OF_ADDRESS;
    if (address == owner)
        snprintf(name, ZL_OWNER_MAX_BYTES, "uid %" PRIu64, owner);
    else if (address == 0) /* the network ::/64 */
        snprintf(name, ZL_OWNER_MAX_BYTES, "address ::1");
    else if (address > UINT32_MAX)
        snprintf(name, ZL_OWNER_MAX_BYTES, "network %016" PRIx64, be64toh(address));
    else
        snprintf(name, ZL_OWNER_MAX_BYTES, "address %u.%u.%u.%u", (unsigned)(address >> 24) & 255,
                 (unsigned)(address >> 16) & 255, (unsigned)(address >> 8) & 255, (unsigned)address & 255);
}

static size_t header_bytes(const zl_ready *ready)
{
    return ready->count && ready->bytes[0] & LONG ? ZL_HEADER_MAX_BYTES : SHORT_HEADER_BYTES;
}

size_t zl_ready_missing(const zl_ready *ready)
{
    return ready->passed ? 0 : header_bytes(ready) + sizeof NAME - ready->count;
}

size_t zl_ready_pass(zl_ready *ready, uint8_t *bytes, size_t length, const char *owner)
{
    memcpy(ready->bytes + ready->count, bytes, length);
    ready->count += (uint8_t)length;
    if (zl_ready_missing(ready))
        return 0;
    ready->passed = true;
    size_t header = header_bytes(ready), value = strlen(owner);
    uint64_t body = 0;
    for (size_t i = 1; i < header; i++)
        body = body << 8 | ready->bytes[i];
    if (body < sizeof NAME || memcmp(ready->bytes + header, NAME, sizeof NAME) != 0) {
        memcpy(bytes, ready->bytes, ready->count);
        return ready->count;
    }
    body += USER_ID_BYTES + value;
    uint8_t *at = bytes;
    *at++ = COMMAND | LONG;
    for (int shift = 56; shift >= 0; shift -= 8)
        *at++ = (uint8_t)(body >> shift);
    memcpy(at, NAME, sizeof NAME);
    at += sizeof NAME;
    memcpy(at, "\7User-Id\0\0\0", USER_ID_BYTES - 1);
    at += USER_ID_BYTES - 1;
    *at++ = (uint8_t)value;
    memcpy(at, owner, value);
    return (size_t)(at - bytes) + value;
}
