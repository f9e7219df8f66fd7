/* SPDX-License-Identifier: Apache-2.0
 *
 * Access rules of one client.  Documented in acl_rules.h.
 */
#include "mqtt/in/acl_rules.h"

#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES 3u /* access, length of the filter */

static uint32_t filter_length(const uint8_t *rule)
{
    return (uint32_t)rule[1] | (uint32_t)rule[2] << 8;
}

mq_acl_rules *mq_acl_rules_new(const uint8_t *packed, uint32_t length)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < length; at += HEAD_BYTES + filter_length(packed + at)) {
        if (length - at < HEAD_BYTES || length - at - HEAD_BYTES < filter_length(packed + at))
            return NULL;
        count++;
    }
    mq_acl_rules *rules = malloc(sizeof *rules + length);
    if (rules == NULL)
        return NULL;
    *rules = (mq_acl_rules){.length = length, .count = count};
    memcpy(rules->at, packed, length);
    return rules;
}

bool mq_acl_rules_allow(const mq_acl_rules *rules, const void *name, uint32_t length)
{
    uint32_t found = 0;
    for (const uint8_t *rule = rules->at, *end = rule + rules->length; rule < end;) {
        uint32_t filter = filter_length(rule);
        if (mq_filter_matches((const char *)rule + HEAD_BYTES, filter, name, length))
            found |= rule[0];
        rule += HEAD_BYTES + filter;
    }
    return found == MQ_ACL_ALLOW;
}
