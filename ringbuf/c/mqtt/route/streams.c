/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams: the partition of each topic.  edge/streams/streams.py has the same rule: the first stream with a
 * filter that matches, and of its partitions the one with the number crc32c(topic) % partitions.
 *
 * Python hands over the filters of each stream in the order of the configuration, and the number of its
 * partitions.  The ring of a partition is known after its first topic, which Python makes.
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>
#include <string.h>

void mq_streams_free(mq_engine *engine)
{
    for (uint32_t i = 0; i < engine->stream_count; i++) {
        free(engine->streams[i].filters);
        free(engine->streams[i].rings);
    }
    free(engine->streams);
    engine->streams = NULL;
    engine->stream_count = 0;
}

bool mq_stream_add(mq_engine *engine, const char *filters, uint32_t length, uint32_t partitions)
{
    mq_stream *streams = realloc(engine->streams, (engine->stream_count + 1) * sizeof *streams);
    if (streams == NULL)
        return false;
    engine->streams = streams;
    mq_stream stream = {.filters = malloc(length + 1),
                        .rings = calloc(partitions, sizeof *stream.rings),
                        .length = length,
                        .partitions = partitions};
    if (stream.filters == NULL || stream.rings == NULL) {
        free(stream.filters);
        free(stream.rings);
        return false;
    }
    memcpy(stream.filters, filters, length);
    streams[engine->stream_count++] = stream;
    return true;
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
