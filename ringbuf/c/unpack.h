/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion of msgpack payloads into columns, for C: unpack_api.h has every declaration of this part.
 */
#ifndef BRIM_UNPACK_H
#define BRIM_UNPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "unpack_api.h"

#endif
