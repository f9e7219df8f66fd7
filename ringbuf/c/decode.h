/* SPDX-License-Identifier: Apache-2.0
 *
 * Records into columns, for C: see decode_api.h, which holds every declaration of this part.
 */
#ifndef BRIM_DECODE_H
#define BRIM_DECODE_H

#include "record.h"

#include "decode_api.h"

#endif
