/* SPDX-License-Identifier: Apache-2.0
 *
 * Selection of records for consumer groups from runs that were copied from a ring or the log.
 */
#ifndef BRIM_CONSUMERS_H
#define BRIM_CONSUMERS_H

#include "base/record.h"

#include "consumers/consumers_api.h"

#endif
