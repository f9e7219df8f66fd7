/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC-32C (Castagnoli, reflected polynomial 0x82f63b78; RFC 3720 appendix B.4).
 *
 * The processor's instruction is used where available, 8 bytes per step.  From 3 * LANE bytes on, three lanes
 * run at once, because the instruction takes three cycles and one starts per cycle.  A table that moves a
 * checksum across LANE zero bytes joins the lanes.  Other processors use a table of 256 words.
 *
 * On a processor that multiplies four pairs of polynomials at once (VPCLMULQDQ), long runs are folded, 256
 * bytes per step.  A block of 128 bits is replaced by its remainder modulo the polynomial in the block one
 * step later.  Copied bytes are checksummed in the same pass and written past the caches, because they go to
 * the disk and are not read again.
 *
 * The checksum of zlib, which drained files also have, uses another polynomial.  It is folded in the same
 * way, many times faster than zlib itself.  zlib handles the bytes that do not fold.
 */
#include <stdint.h>
#include <string.h>

#include "base/record.h"

#define POLYNOMIAL 0x82f63b78u
#define POLYNOMIAL_OF_ZLIB 0xedb88320u
#define LANE 1024u

static uint32_t byte_table[256];
static uint32_t lane_table[4][256];

#if defined(__x86_64__)
#include <nmmintrin.h>
#if defined(__clang__) && __clang_major__ >= 14 /* there the instruction is a feature of its own */
#define CRC32_TARGET "sse4.2,crc32"
#else
#define CRC32_TARGET "sse4.2"
#endif
#define HARDWARE __attribute__((target(CRC32_TARGET)))
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

/* ---- checksum during a copy ---- */

#define PIECE_BYTES (6 * LANE) /* copied, then read again from the first-level cache */

static uint32_t copy_in_pieces(uint32_t crc, uint8_t *to, const uint8_t *p, size_t length)
{
    while (length > 0) {
        size_t piece = length < PIECE_BYTES ? length : PIECE_BYTES;
        memcpy(to, p, piece);
        crc = run(crc, to, piece);
        to += piece;
        p += piece;
        length -= piece;
    }
    return crc;
}

static uint32_t (*run_copy)(uint32_t, uint8_t *, const uint8_t *, size_t) = copy_in_pieces;

static uint64_t nothing_folded(uint32_t *crc, const uint8_t *p, uint64_t length)
{
    (void)crc, (void)p, (void)length;
    return 0;
}

static uint64_t (*run_zlib)(uint32_t *, const uint8_t *, uint64_t) = nothing_folded;

/* ---- folded ---- */

#if defined(__x86_64__)
#include <immintrin.h>

#define FOLDED __attribute__((target("avx512f,vpclmulqdq,pclmul," CRC32_TARGET)))
#define STEP_BYTES 256u
#define FOLD_LEAST (2 * STEP_BYTES)
#define LINE_BYTES 64u

typedef struct factors { /* for the first and second half of a block */
    uint64_t across_step[2], across_line[2];
} factors;

static factors ours, of_zlib;

/* x^n modulo the polynomial, as a factor: reflected, in the upper half. */
static uint64_t power(uint32_t polynomial, unsigned n)
{
    uint32_t value = 0x80000000u;
    for (; n > 0; n--)
        value = value >> 1 ^ (value & 1 ? polynomial : 0);
    return (uint64_t)value << 32;
}

/* Factors: a product of reflected halves is shifted by one bit, and the first half is 64 bits ahead of the
 * second. */
static void fold_prepare(uint64_t across[2], uint32_t polynomial, unsigned bits)
{
    across[0] = power(polynomial, bits + 63);
    across[1] = power(polynomial, bits - 1);
}

static void factors_prepare(factors *by, uint32_t polynomial)
{
    fold_prepare(by->across_step, polynomial, 8 * STEP_BYTES);
    fold_prepare(by->across_line, polynomial, 8 * LINE_BYTES);
}

FOLDED static inline __m512i everywhere(const uint64_t across[2])
{
    return _mm512_broadcast_i32x4(_mm_set_epi64x((int64_t)across[1], (int64_t)across[0]));
}

FOLDED static inline __m512i folded(__m512i blocks, __m512i across, __m512i onto)
{
    __m512i first = _mm512_clmulepi64_epi128(blocks, across, 0x00);
    return _mm512_ternarylogic_epi64(first, _mm512_clmulepi64_epi128(blocks, across, 0x11), onto, 0x96);
}

/* Load the next line; also store it at `to`, at the start of a line, unless `to` is NULL. */
FOLDED static inline __m512i line_at(uint8_t *to, const uint8_t *p, size_t at)
{
    __m512i line = _mm512_loadu_si512(p + at);
    if (to != NULL)
        _mm512_stream_si512((void *)(to + at), line);
    return line;
}

/* Fold the bytes at `p`, preceded by `crc`, into `rest`, which then has the same checksum.  `length` is a
 * multiple of STEP_BYTES, and not 0. */
FOLDED static inline __attribute__((always_inline)) void
fold(const factors *by, uint32_t crc, uint8_t *to, const uint8_t *p, size_t length, uint8_t rest[LINE_BYTES])
{
    __m512i across = everywhere(by->across_step), line[4];
    for (unsigned i = 0; i < 4; i++)
        line[i] = line_at(to, p, i * LINE_BYTES);
    line[0] = _mm512_xor_si512(line[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (size_t at = STEP_BYTES; at < length; at += STEP_BYTES)
        for (unsigned i = 0; i < 4; i++)
            line[i] = folded(line[i], across, line_at(to, p, at + i * LINE_BYTES));
    across = everywhere(by->across_line);
    for (unsigned i = 1; i < 4; i++)
        line[i] = folded(line[i - 1], across, line[i]);
    _mm512_storeu_si512(rest, line[3]);
}

FOLDED static uint32_t by_folding(uint32_t crc, const uint8_t *p, size_t length)
{
    if (length < FOLD_LEAST)
        return by_hardware(crc, p, length);
    size_t whole = length - length % STEP_BYTES;
    uint8_t left[LINE_BYTES];
    fold(&ours, crc, NULL, p, whole, left);
    return by_hardware(by_hardware(0, left, sizeof left), p + whole, length - whole);
}

FOLDED static uint32_t copy_folding(uint32_t crc, uint8_t *to, const uint8_t *p, size_t length)
{
    size_t head = (LINE_BYTES - (uintptr_t)to % LINE_BYTES) % LINE_BYTES;
    if (length < head + FOLD_LEAST)
        return copy_in_pieces(crc, to, p, length);
    size_t whole = (length - head) / STEP_BYTES * STEP_BYTES, rest = length - head - whole;
    memcpy(to, p, head);
    crc = by_hardware(crc, p, head);
    uint8_t left[LINE_BYTES];
    fold(&ours, crc, to + head, p + head, whole, left);
    crc = by_hardware(0, left, sizeof left);
    _mm_sfence(); /* orders the streaming stores before a later notification of the copy */
    memcpy(to + head + whole, p + head + whole, rest);
    return by_hardware(crc, p + head + whole, rest);
}

FOLDED static uint64_t zlib_folding(uint32_t *crc, const uint8_t *p, uint64_t length)
{
    uint64_t whole = length - length % STEP_BYTES;
    uint8_t left[LINE_BYTES];
    if (whole == 0)
        return 0;
    fold(&of_zlib, *crc, NULL, p, whole, left);
    uint32_t value = 0;
    for (size_t i = 0; i < 8 * sizeof left; i++) {
        value ^= left[i / 8] >> i % 8 & 1u;
        value = value >> 1 ^ (value & 1 ? POLYNOMIAL_OF_ZLIB : 0);
    }
    *crc = value;
    return whole;
}

static void choose_folding(void)
{
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("vpclmulqdq"))
        return;
    factors_prepare(&ours, POLYNOMIAL);
    factors_prepare(&of_zlib, POLYNOMIAL_OF_ZLIB);
    run = by_folding;
    run_copy = copy_folding;
    run_zlib = zlib_folding;
}
#else
static void choose_folding(void)
{
}
#endif

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
    if (hardware_here()) {
        run = by_hardware;
        choose_folding();
    }
#endif
}

uint32_t rb_crc32c(uint32_t seed, const void *data, size_t length)
{
    return ~run(~seed, data, length);
}

uint32_t rb_crc32c_copy(uint32_t seed, void *to, const void *from, size_t length)
{
    return ~run_copy(~seed, to, from, length);
}

uint32_t rb_crc32c_of(uint32_t seed, const uint8_t *bytes, uint64_t length)
{
    return rb_crc32c(seed, bytes, length);
}

uint64_t rb_crc32_fold(uint32_t *crc, const uint8_t *bytes, uint64_t length)
{
    uint32_t value = ~*crc;
    uint64_t taken = run_zlib(&value, bytes, length);
    *crc = ~value;
    return taken;
}
