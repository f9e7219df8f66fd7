/* SPDX-License-Identifier: Apache-2.0
 *
 * Retained messages: the last message of a topic that was published with RETAIN, for who subscribes later.
 *
 * A copy in our own memory, shaped like a record, so that delivery reads it as one; it outlives the ring's.
 * Counted by its topic and by each queue entry that points to it, so replacing it disturbs no delivery. Until
 * the last of them is done its bytes count as retained: who subscribes to what is replaced again and again,
 * and reads nothing, fills the store, not the memory.
 */
#include "mqtt.h"

#include <stdlib.h>
#include <string.h>

void mq_retained_forget(mq_engine *engine, mq_topic *topic)
{
    if (topic->retained == NULL)
        return;
    mq_entry entry = {.where = (uint64_t)(uintptr_t)topic->retained};
    engine->counters.retained--;
    topic->retained = NULL;
    mq_entry_done(engine, &entry);
}

static void blob_write(mq_blob *blob, const mq_topic *topic, const mq_message *message)
{
    uint8_t *to = (uint8_t *)&blob->record + RB_RECORD_HEADER_BYTES;
    memcpy(to, topic->name, topic->length);
    if (message->properties_length > 0)
        memcpy(to + topic->length, message->properties, message->properties_length);
    memcpy((uint8_t *)&blob->record + rb_payload_position(topic->length, message->properties_length),
           message->payload, message->payload_length);
}

/* Replaces the retained message of `topic`; an empty payload clears it [MQTT-3.3.1-10].  Beyond the limits of
 * the store there is none from then on, rather than an old one: counted. */
void mq_retain(mq_engine *engine, mq_topic *topic, const mq_message *message, uint64_t origin)
{
    mq_retained_forget(engine, topic);
    if (message->payload_length == 0)
        return;
    uint32_t at = rb_payload_position(topic->length, message->properties_length),
             bytes = (uint32_t)offsetof(mq_blob, record) + at + message->payload_length;
    mq_blob *blob = NULL;
    if (engine->counters.retained < engine->limits.retained_max &&
        engine->counters.retained_bytes + bytes <= engine->limits.retained_max_bytes)
        blob = malloc(bytes);
    if (blob == NULL) {
        engine->counters.retained_refused++;
        return;
    }
    *blob = (mq_blob){
        .references = 1,
        .origin = origin,
        .publisher = message->publisher ? mq_handle(&message->publisher->item) : 0,
        .bytes = bytes,
        .record = {.offset = ++engine->retained_number,
                   .length = at + message->payload_length,
                   .timestamp_ns = message->timestamp_ns ? message->timestamp_ns : engine->now_ns,
                   .key_hash = topic->key_hash,
                   .key_length = topic->length,
                   .flags = (uint16_t)(message->flags | RB_FLAG_RETAIN)}};
    blob_write(blob, topic, message);
    topic->retained = blob;
    engine->counters.retained++;
    engine->counters.retained_bytes += bytes;
}
