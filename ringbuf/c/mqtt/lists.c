/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of numbers: arrays that grow (lists.h).
 */
#include "mqtt/lists.h"

#include <stdlib.h>

bool mq_list_reserve(mq_list *list, uint32_t capacity)
{
    if (capacity <= list->capacity)
        return true;
    uint64_t *at = realloc(list->at, capacity * sizeof *at);
    if (at == NULL)
        return false;
    list->at = at;
    list->capacity = capacity;
    return true;
}

bool mq_list_add(mq_list *list, uint64_t number)
{
    if (list->count == list->capacity && !mq_list_reserve(list, list->capacity ? list->capacity * 2 : 64))
        return false;
    list->at[list->count++] = number;
    return true;
}
