/* SPDX-License-Identifier: Apache-2.0
 *
 * Segments of the log into tables, for C: see scan_api.h, which holds every declaration of this part.
 *
 * All of it works on the caller's memory: no allocation, no system call.  Bytes of files are hostile; what
 * they say is checked against the room before it is used, and read once.
 */
#ifndef BRIM_SCAN_H
#define BRIM_SCAN_H

#include "record.h"

#include "scan_api.h"

#endif
