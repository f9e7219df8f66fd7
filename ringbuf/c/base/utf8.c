/* SPDX-License-Identifier: Apache-2.0
 *
 * Check of UTF-8: table 3-7 of Unicode, byte by byte, after a check for ASCII of eight bytes at a time.
 * Topics, content types and JSON are mostly ASCII.
 */
#include "base/utf8.h"

#include <string.h>

#define HIGH_BITS 0x8080808080808080u

/* Length of the character at `at`, which is not ASCII; 0: invalid, or longer than `left`. */
static uint32_t character(const uint8_t *at, uint32_t left)
{
    uint8_t first = at[0], low = 0x80, high = 0xbf; /* of the second byte */
    uint32_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (first < 0xc2 || first > 0xf4 || length > left)
        return 0;
    if (first == 0xe0)
        low = 0xa0; /* otherwise a shorter form exists */
    else if (first == 0xed)
        high = 0x9f; /* surrogates */
    else if (first == 0xf0)
        low = 0x90;
    else if (first == 0xf4)
        high = 0x8f; /* beyond U+10FFFF */
    if (at[1] < low || at[1] > high)
        return 0;
    for (uint32_t i = 2; i < length; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    return length;
}

bool rb_is_utf8(const uint8_t *at, uint32_t length)
{
    for (uint32_t i = 0; i < length;) {
        uint64_t eight;
        if (length - i >= sizeof eight) {
            memcpy(&eight, at + i, sizeof eight);
            if ((eight & HIGH_BITS) == 0) {
                i += (uint32_t)sizeof eight;
                continue;
            }
        }
        uint32_t size = at[i] < 0x80 ? 1 : character(at + i, length - i);
        if (size == 0)
            return false;
        i += size;
    }
    return true;
}
