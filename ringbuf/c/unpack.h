/* SPDX-License-Identifier: Apache-2.0
 *
 * msgpack payloads into columns, for C: see unpack_api.h, which holds every declaration of this part.
 */
#ifndef BRIM_UNPACK_H
#define BRIM_UNPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "unpack_api.h"

#endif
