/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC-32C (Castagnoli, reflected polynomial 0x82f63b78; RFC 3720 appendix B.4).
 *
 * By the processor's instruction where it has one, 8 bytes a step.  From 3 * LANE bytes on, three lanes run
 * at once, because the instruction takes three cycles and starts one each cycle; the lanes are joined by a
 * table that moves a checksum across LANE zero bytes.  By a table of 256 words elsewhere.
 */
#include <string.h>

#include "record.h"

#define POLYNOMIAL 0x82f63b78u
#define LANE 1024u

static uint32_t byte_table[256];
static uint32_t lane_table[4][256];

#if defined(__x86_64__)
#include <nmmintrin.h>
#define HARDWARE __attribute__((target("sse4.2")))
#define STEP8(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define STEP1(crc, byte) _mm_crc32_u8((crc), (byte))
static bool hardware_here(void)
{
    return __builtin_cpu_supports("sse4.2");
}
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define HARDWARE __attribute__((target("+crc")))
#define STEP8(crc, word) __crc32cd((crc), (word))
#define STEP1(crc, byte) __crc32cb((crc), (byte))
static bool hardware_here(void)
{
    return getauxval(AT_HWCAP) & (1u << 7); /* HWCAP_CRC32 */
}
#endif

static uint32_t by_table(uint32_t crc, const uint8_t *p, size_t length)
{
    for (; length > 0; p++, length--)
        crc = crc >> 8 ^ byte_table[(crc ^ *p) & 0xff];
    return crc;
}

#ifdef HARDWARE
static inline uint64_t word_at(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

static inline uint32_t across_lane(uint32_t crc)
{
    return lane_table[0][crc & 0xff] ^ lane_table[1][crc >> 8 & 0xff] ^ lane_table[2][crc >> 16 & 0xff] ^
           lane_table[3][crc >> 24];
}

HARDWARE static uint32_t by_hardware(uint32_t crc, const uint8_t *p, size_t length)
{
    for (; length >= 3 * LANE; p += 3 * LANE, length -= 3 * LANE) {
        uint32_t second = 0, third = 0;
        for (size_t i = 0; i < LANE; i += 8) {
            crc = STEP8(crc, word_at(p + i));
            second = STEP8(second, word_at(p + LANE + i));
            third = STEP8(third, word_at(p + 2 * LANE + i));
        }
        crc = across_lane(across_lane(crc) ^ second) ^ third;
    }
    for (; length >= 8; p += 8, length -= 8)
        crc = STEP8(crc, word_at(p));
    for (; length > 0; p++, length--)
        crc = STEP1(crc, *p);
    return crc;
}
#endif

static uint32_t (*run)(uint32_t, const uint8_t *, size_t) = by_table;

__attribute__((constructor)) static void crc32c_prepare(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        byte_table[i] = crc;
    }
    static const uint8_t zeros[LANE];
    for (uint32_t byte = 0; byte < 4; byte++)
        for (uint32_t i = 0; i < 256; i++)
            lane_table[byte][i] = by_table(i << 8 * byte, zeros, LANE);
#ifdef HARDWARE
    if (hardware_here())
        run = by_hardware;
#endif
}

uint32_t rb_crc32c(uint32_t seed, const void *data, size_t length)
{
    return ~run(~seed, data, length);
}

uint32_t rb_crc32c_of(uint32_t seed, const uint8_t *bytes, uint64_t length)
{
    return rb_crc32c(seed, bytes, length);
}
