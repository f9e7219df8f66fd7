/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of the fuzz targets.
 */
#ifndef BRIM_TESTS_MUST_H
#define BRIM_TESTS_MUST_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* End the process with a message, unless the condition holds. */
static void must(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "not so: %s\n", what);
    abort();
}

#endif
