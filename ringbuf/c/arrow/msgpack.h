/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion of msgpack payloads into columns, for C: msgpack_api.h has every declaration of this part.
 */
#ifndef BRIM_MSGPACK_H
#define BRIM_MSGPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "arrow/msgpack_api.h"

#endif
