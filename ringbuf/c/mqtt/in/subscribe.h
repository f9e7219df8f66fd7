/* SPDX-License-Identifier: Apache-2.0
 *
 * SUBSCRIBE and UNSUBSCRIBE in their usual form: only plain filters, and no properties.  A filter is plain if
 * it has no wildcards, names no group and no reserved topic, and is within the limits of names.
 *
 * All other forms, and all invalid packets, are decoded by edge/mqtt/decode.py, the oracle of this decoder.
 */
#ifndef BRIM_MQTT_SUBSCRIBE_H
#define BRIM_MQTT_SUBSCRIBE_H

#include "mqtt/mqtt.h"

typedef struct mq_plain_filter {
    const char *text; /* in the packet: valid UTF-8 without U+0000 */
    uint16_t length;
    uint8_t qos; /* of an UNSUBSCRIBE: 0 */
} mq_plain_filter;

typedef struct mq_plain_filters {
    uint32_t identifier, count;
    mq_plain_filter filter[MQ_PLAIN_FILTERS_MAX];
} mq_plain_filters;

/* Decode the body of a SUBSCRIBE (`has_qos`) or UNSUBSCRIBE with 1 to `most` filters.  `most` is at most
 * MQ_PLAIN_FILTERS_MAX.  False: it is invalid, or of another form. */
bool mq_plain_filters_decode(const mq_engine *engine, const uint8_t *body, size_t length, uint32_t version,
                             bool has_qos, uint32_t most, mq_plain_filters *out);

#endif
