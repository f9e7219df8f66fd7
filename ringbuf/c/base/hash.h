/* SPDX-License-Identifier: Apache-2.0
 *
 * Keyed hash for tables whose keys come from clients.
 *
 * Folded multiplication of 16 bytes per step, as in wyhash, under a random key.  Without the key, a client
 * cannot construct colliding names.  Values are private to a process and part of no format.
 */
#ifndef BRIM_HASH_H
#define BRIM_HASH_H

#include <stdint.h>
#include <string.h>

static inline uint64_t rb_hash_mix(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t rb_hash(const uint64_t seed[2], const void *bytes, uint32_t length)
{
    const uint8_t *name = bytes;
    uint64_t hash = seed[0] ^ length, a, b;
    uint32_t left = length;
    for (; left > 16; left -= 16, name += 16) {
        memcpy(&a, name, 8);
        memcpy(&b, name + 8, 8);
        hash = rb_hash_mix(a ^ seed[1], b ^ hash);
    }
    uint8_t tail[16] = {0};
    memcpy(tail, name, left);
    memcpy(&a, tail, 8);
    memcpy(&b, tail + 8, 8);
    return rb_hash_mix(rb_hash_mix(a ^ seed[1], b ^ hash), seed[0] | 1);
}

#endif
