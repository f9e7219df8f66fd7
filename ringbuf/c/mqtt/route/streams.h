/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams: the rules by which topics get a partition.  Part of mqtt.h.
 */
#ifndef BRIM_MQTT_STREAMS_H
#define BRIM_MQTT_STREAMS_H

#include "mqtt/slab.h"

typedef struct mq_stream {
    char *filters; /* separated by NUL */
    uint32_t length, partitions;
    uint16_t *rings; /* by partition; 0: not known yet */
} mq_stream;

/* Add a stream after the others, with its filters separated by NUL.  False: no memory. */
bool mq_stream_add(mq_engine *engine, const char *filters, uint32_t length, uint32_t partitions);
void mq_streams_free(mq_engine *engine);
/* Ring of a topic's partition; 0: not known yet */
uint16_t mq_ring_of_partition(const mq_engine *engine, const char *name, uint32_t length);

#endif
