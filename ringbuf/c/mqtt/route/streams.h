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

/* Fill in a stream: its filters, separated by NUL, and the rings of its partitions.  False: no memory. */
bool mq_stream_init(mq_stream *stream, const char *filters, uint32_t length, const uint16_t *rings,
                    uint32_t partitions);
/* Use these streams from now on, in place of the earlier ones.  The engine owns the array. */
void mq_streams_set(mq_engine *engine, mq_stream *streams, uint32_t count);
void mq_streams_free(mq_stream *streams, uint32_t count);
/* Move topics to the rings of their partitions, among `places` of the table from `from` on.  *moved is raised
 * by their number.  Returns the next place. */
uint32_t mq_topics_move(mq_engine *engine, uint32_t from, uint32_t places, uint32_t *moved);
/* Ring of a topic's partition; 0: not known yet */
uint16_t mq_ring_of_partition(const mq_engine *engine, const char *name, uint32_t length);

#endif
