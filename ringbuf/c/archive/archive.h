/* SPDX-License-Identifier: Apache-2.0
 *
 * Archives, for C: see archive_api.h, which holds every declaration of this part.
 *
 * Plain reads and writes of the caller's memory: no allocation, no system call.  Bytes of files are hostile:
 * every length is checked against its room before it is used.
 */
#ifndef BRIM_ARCHIVE_H
#define BRIM_ARCHIVE_H

#include "arrow/decode.h"
#include "scan/scan.h"

#include "archive/archive_api.h"

#endif
