/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams: the partition of each topic.  edge/streams/streams.py has the same rule: the first stream with a
 * filter that matches, and of its partitions the one with the number crc32c(topic) % partitions.
 *
 * Python hands over the filters of each stream in the order of the configuration, and the rings of its
 * partitions.  At a start the ring of a partition is known after its first topic, which Python makes.
 *
 * A running broker gets other streams if a stream is added.  New topics then follow the new rules, and the
 * known ones are moved in slices.  A topic is in one ring at any time.  Its earlier records stay in the ring
 * that they are in: queues, windows and retained messages refer to records by ring and position.  Topics of
 * delayed messages belong to no stream, and stay in their ring.
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>
#include <string.h>

void mq_streams_free(mq_stream *streams, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        free(streams[i].filters);
        free(streams[i].rings);
    }
    free(streams);
}

bool mq_stream_init(mq_stream *stream, const char *filters, uint32_t length, const uint16_t *rings,
                    uint32_t partitions)
{
    *stream = (mq_stream){.filters = malloc(length + 1),
                          .rings = malloc(partitions * sizeof *rings),
                          .length = length,
                          .partitions = partitions};
    if (stream->filters == NULL || stream->rings == NULL) {
        free(stream->filters);
        free(stream->rings);
        return false;
    }
    memcpy(stream->filters, filters, length);
    memcpy(stream->rings, rings, partitions * sizeof *rings);
    return true;
}

void mq_streams_set(mq_engine *engine, mq_stream *streams, uint32_t count)
{
    mq_streams_free(engine->streams, engine->stream_count);
    engine->streams = streams;
    engine->stream_count = count;
}

/* Filters are separated by NUL, which no filter contains.  The last stream takes all topics. */
static bool takes(const mq_stream *stream, const char *name, uint32_t length)
{
    for (const char *at = stream->filters, *end = at + stream->length; at < end;) {
        const char *stop = memchr(at, 0, (size_t)(end - at));
        uint32_t filter_length = (uint32_t)((stop == NULL ? end : stop) - at);
        if (mq_filter_matches(at, filter_length, name, length))
            return true;
        at += filter_length + 1;
    }
    return false;
}

uint16_t mq_ring_of_partition(const mq_engine *engine, const char *name, uint32_t length)
{
    for (uint32_t i = 0; i < engine->stream_count; i++) {
        const mq_stream *stream = &engine->streams[i];
        if (i + 1 < engine->stream_count && !takes(stream, name, length))
            continue;
        uint32_t partition = stream->partitions == 1 ? 0 : rb_crc32c(0, name, length) % stream->partitions;
        return stream->rings[partition];
    }
    return 0;
}

/* A repeated QoS 2 message whose record is in the earlier ring must not be acknowledged before that ring is
 * durable up to here: mq_moves_are_durable(). */
static void move(mq_engine *engine, mq_topic *topic, uint16_t ring)
{
    mq_ring *earlier = engine->rings[topic->ring];
    earlier->moved_end = earlier->writer->tail;
    engine->topics_moved = true;
    topic->ring = ring;
}

uint32_t mq_topics_move(mq_engine *engine, uint32_t from, uint32_t places, uint32_t *moved)
{
    uint32_t created = engine->topics.created, end = created;
    if (from < created && places < created - from)
        end = from + places;
    for (; from < end; from++) {
        mq_topic *topic = mq_slab_at(&engine->topics, from);
        if (!(topic->item.generation & 1) || topic->delayed_from > 0)
            continue;
        uint16_t ring = mq_ring_of_partition(engine, (const char *)topic->name, topic->length);
        if (ring == 0 || ring == topic->ring)
            continue;
        move(engine, topic, ring);
        ++*moved;
    }
    return from;
}
