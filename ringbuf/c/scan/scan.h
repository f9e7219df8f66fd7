/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion of log segments into tables, for C: scan_api.h has every declaration of this part.
 *
 * All functions work on the caller's memory: no allocation, no system call.  Bytes of files are hostile: each
 * value is read once, and checked against the room before use.
 */
#ifndef BRIM_SCAN_H
#define BRIM_SCAN_H

#include "base/record.h"

#include "scan/scan_api.h"

#endif
