/* SPDX-License-Identifier: Apache-2.0
 *
 * UTF-8 check.  A leaf: includes nothing of this project.
 */
#ifndef BRIM_UTF8_H
#define BRIM_UTF8_H

#include <stdbool.h>
#include <stdint.h>

/* True for well-formed UTF-8: shortest form, no surrogates. */
bool rb_is_utf8(const uint8_t *at, uint32_t length);

#endif
