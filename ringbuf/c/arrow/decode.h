/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion of records into columns, for C: decode_api.h has every declaration of this part.
 */
#ifndef BRIM_DECODE_H
#define BRIM_DECODE_H

#include "base/record.h"

#include "arrow/decode_api.h"

#endif
