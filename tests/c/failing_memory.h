/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocations that fail, for targets linked with --wrap=malloc, calloc and realloc (tests/support/fuzz.py).
 */
#ifndef BRIM_TESTS_FAILING_MEMORY_H
#define BRIM_TESTS_FAILING_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static uint32_t fails_in; /* number of the next allocation that fails; 0: none */

static bool fails(void)
{
    return fails_in > 0 && --fails_in == 0;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *at, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *at, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *at, size_t bytes)
{
    return fails() ? NULL : __real_realloc(at, bytes);
}

#endif
