/* SPDX-License-Identifier: Apache-2.0
 *
 * Retained messages: the last message of each topic that was published with RETAIN, for later subscribers.
 *
 * A retained message is a copy in this process's memory, in the form of a record, so that delivery reads it
 * as one.  It outlives the ring's record.  The topic and each queue entry hold references, so replacing it
 * does not disturb deliveries.
 *
 * A full store keeps its messages: a message that does not fit is not retained, and the topic keeps its old
 * value.  A topic with a value can always get another one that is not larger.  Replaced values that queue
 * entries still reference have as much room again.  A subscriber that does not read can thus block
 * replacements, but no new topics.  Messages of the server's own topics ($SYS) are not counted.
 */
#include "mqtt/mqtt.h"

#include <stdlib.h>
#include <string.h>

#define AUTHOR_FREE_BYTES 256u /* bytes of an author that count for no limit */
#define SAVE_SHARE 4u /* part of a ring: retained messages are saved before the ring loses their records */

void mq_retained_forget(mq_engine *engine, mq_topic *topic)
{
    if (topic->retained == NULL)
        return;
    mq_entry entry = {.where = (uint64_t)(uintptr_t)topic->retained};
    engine->counters.retained -= !topic->reserved;
    engine->replaced_bytes += topic->reserved ? 0 : topic->retained->bytes;
    mq_owner *owner = mq_author_owner(topic->retained->author);
    mq_owner_use(owner, MQ_OWNED_RETAINED, -1);
    mq_owner_use(owner, MQ_OWNED_RETAINED_BYTES, -(int64_t)topic->retained->bytes);
    mq_author_drop(engine, topic->retained->author);
    topic->retained->author = NULL;
    topic->retained = NULL;
    mq_entry_done(engine, &entry);
}

static void blob_write(mq_blob *blob, const mq_topic *topic, const mq_message *message)
{
    uint8_t *to = (uint8_t *)&blob->record + RB_RECORD_HEADER_BYTES;
    memcpy(to, topic->name, topic->length);
    if (message->properties_length > 0)
        memcpy(to + topic->length, message->properties, message->properties_length);
    uint8_t *payload =
        (uint8_t *)&blob->record + rb_payload_position(topic->length, message->properties_length);
    uint8_t *end = to + topic->length + message->properties_length;
    memset(end, 0, (size_t)(payload - end)); /* the padding is written to a file, too */
    memcpy(payload, message->payload, message->payload_length);
}

/* An author of usual length counts no bytes, so that another client's message can replace a value. */
static uint32_t author_bytes(const mq_author *author)
{
    return author == NULL || author->length <= AUTHOR_FREE_BYTES ? 0 : author->length - AUTHOR_FREE_BYTES;
}

static uint32_t blob_bytes(const mq_topic *topic, const mq_message *message)
{
    return (uint32_t)offsetof(mq_blob, record) +
           rb_payload_position(topic->length, message->properties_length) + message->payload_length;
}

/* Bytes that count for the limits: the blob, and a long author. */
static uint32_t counted_bytes(const mq_topic *topic, const mq_message *message)
{
    return blob_bytes(topic, message) + (topic->reserved ? 0 : author_bytes(message->author));
}

bool mq_retained_fits(mq_engine *engine, const mq_topic *topic, const mq_message *message)
{
    const mq_limits *limits = &engine->limits;
    const mq_blob *old = topic->retained;
    if (topic->reserved || topic->delayed_from > 0)
        return true;
    if (old != NULL && old->references > 1 &&
        engine->replaced_bytes + old->bytes > limits->retained_max_bytes)
        return false;
    uint32_t bytes = counted_bytes(topic, message), old_bytes = old != NULL ? old->bytes : 0;
    if (message->payload_length == 0 || bytes <= old_bytes)
        return true;
    return (old != NULL || mq_owner_may(engine, message->owner, MQ_OWNED_RETAINED, 1)) &&
           mq_owner_may(engine, message->owner, MQ_OWNED_RETAINED_BYTES, bytes - old_bytes);
}

void mq_retained_promise(mq_engine *engine, const mq_topic *topic, const mq_message *message, int sign)
{
    if (topic->reserved || message->payload_length == 0)
        return;
    engine->promised_retained += (uint64_t)sign;
    engine->promised_bytes += (uint64_t)sign * counted_bytes(topic, message);
    mq_owner_use(message->owner, MQ_OWNED_RETAINED, sign);
    mq_owner_use(message->owner, MQ_OWNED_RETAINED_BYTES, sign * (int64_t)counted_bytes(topic, message));
}

/* Replace the retained message of `topic`; an empty payload removes it [MQTT-3.3.1-10].  Without memory the
 * old one stays. */
static void retain(mq_engine *engine, mq_topic *topic, const mq_message *message, uint64_t origin)
{
    if (message->payload_length == 0) {
        mq_retained_forget(engine, topic);
        return;
    }
    uint32_t at = rb_payload_position(topic->length, message->properties_length),
             bytes = counted_bytes(topic, message);
    mq_blob *blob = malloc(blob_bytes(topic, message));
    if (blob == NULL) {
        engine->counters.retained_refused++;
        return;
    }
    mq_retained_forget(engine, topic);
    *blob = (mq_blob){
        .references = 1,
        .origin = origin,
        .publisher = message->publisher ? mq_handle(&message->publisher->item) : 0,
        .bytes = bytes & 0x1fffffff,
        .reserved = topic->reserved,
        .record = {.offset = ++engine->retained_number,
                   .length = at + message->payload_length,
                   .timestamp_ns = message->timestamp_ns ? message->timestamp_ns : engine->now_ns,
                   .key_hash = topic->key_hash,
                   .key_length = topic->length,
                   .flags = (uint16_t)(message->flags | RB_FLAG_RETAIN)}};
    blob_write(blob, topic, message);
    topic->retained = blob;
    engine->counters.retained += !topic->reserved;
    engine->counters.retained_bytes += topic->reserved ? 0 : bytes;
    if (!topic->reserved)
        blob->author = mq_author_reference(message->author);
    mq_owner_use(mq_author_owner(blob->author), MQ_OWNED_RETAINED, 1);
    mq_owner_use(mq_author_owner(blob->author), MQ_OWNED_RETAINED_BYTES, bytes);
}

/* Add the topic to the next save.  Without memory the next save is due now and has all topics. */
static void change(mq_engine *engine, mq_topic *topic)
{
    topic->changed = mq_list_add(&engine->retained_changed, topic->item.index);
    engine->retained_unlisted |= !topic->changed;
    engine->retained_due |= !topic->changed;
}

/* Replace the retained message of `topic`, and mark the change as not saved. */
void mq_retain(mq_engine *engine, mq_topic *topic, const mq_message *message, uint64_t origin)
{
    if (topic->delayed_from > 0) /* it is retained when it is published to the rest of the name */
        return;
    retain(engine, topic, message, origin);
    if (!engine->retained_kept || topic->changed || topic->reserved)
        return;
    change(engine, topic);
}

/* ---- saving ---- */

void mq_retained_due(mq_engine *engine, const mq_ring *ring)
{
    uint64_t since = ring->writer->tail - ring->retained_saved;
    engine->retained_due |= engine->retained_kept && since >= ring->writer->capacity / SAVE_SHARE;
}

void mq_retained_save_begin(mq_engine *engine, bool all)
{
    bool unlisted = engine->retained_unlisted;
    engine->retained_unlisted = engine->retained_due = false;
    for (uint32_t i = 0; (all || unlisted) && i < engine->topics.created; i++) {
        mq_topic *topic = mq_slab_at(&engine->topics, i);
        if (topic->item.generation & 1 && (topic->retained != NULL || unlisted) && !topic->changed &&
            !topic->reserved)
            change(engine, topic);
    }
    if (engine->retained_saving.count == 0) {
        mq_list changed = engine->retained_changed;
        engine->retained_changed = engine->retained_saving;
        engine->retained_saving = changed;
    }
    engine->retained_request = (mq_request){0};
    for (uint32_t i = 1; i < engine->ring_count; i++)
        if (engine->rings[i] != NULL && engine->rings[i]->kind == MQ_RING_OWN)
            engine->rings[i]->retained_saved = engine->rings[i]->writer->tail;
}

/* A record without a payload: the topic has no retained message any more. */
static rb_record removal_of(const mq_engine *engine, const mq_topic *topic)
{
    return (rb_record){.length = rb_payload_position(topic->length, 0),
                       .timestamp_ns = engine->now_ns,
                       .key_hash = topic->key_hash,
                       .key_length = topic->length,
                       .flags = RB_FLAG_RETAIN};
}

static uint32_t change_bytes(const mq_engine *engine, const mq_topic *topic)
{
    return (uint32_t)rb_span(topic->retained != NULL ? topic->retained->record.length
                                                     : removal_of(engine, topic).length);
}

static void put_change(const mq_engine *engine, const mq_topic *topic, uint8_t *to)
{
    if (topic->retained != NULL) {
        memcpy(to, &topic->retained->record, topic->retained->record.length);
        return;
    }
    rb_record removal = removal_of(engine, topic);
    memcpy(to, &removal, sizeof removal);
    memcpy(to + sizeof removal, topic->name, topic->length);
}

/* ---- publishers of retained messages ---- */

static mq_author *author_of(mq_engine *engine, uint32_t index)
{
    const mq_topic *topic = mq_slab_at(&engine->topics, index);
    return topic == NULL || !(topic->item.generation & 1) || topic->retained == NULL
               ? NULL
               : topic->retained->author;
}

uint32_t mq_retained_author_next(mq_engine *engine, uint32_t from, uint32_t places, mq_author **author)
{
    uint32_t end = engine->topics.created - from < places ? engine->topics.created : from + places;
    for (*author = NULL; from < end; from++)
        if ((*author = author_of(engine, from)) != NULL)
            return from;
    return from;
}

/* Append, for each topic of a save with an author: the lengths of name and author, 4 bytes each, then
 * both. */
static uint64_t put_authors(mq_engine *engine, const mq_list *list, uint32_t first, uint8_t *to)
{
    uint64_t bytes = 0;
    for (uint32_t i = first; i < list->count; i++) {
        const mq_author *author = author_of(engine, (uint32_t)list->at[i]);
        if (author == NULL)
            continue;
        const mq_topic *topic = mq_slab_at(&engine->topics, (uint32_t)list->at[i]);
        uint32_t lengths[2] = {topic->length, author->length};
        if (to != NULL) {
            memcpy(to + bytes, lengths, sizeof lengths);
            memcpy(to + bytes + sizeof lengths, topic->name, topic->length);
            memcpy(to + bytes + sizeof lengths + topic->length, author->bytes, author->length);
        }
        bytes += sizeof lengths + topic->length + author->length;
    }
    return bytes;
}

uint8_t *mq_retained_changes(mq_engine *engine, uint64_t bytes_max, uint64_t *length, uint64_t *authors)
{
    mq_list *list = &engine->retained_saving;
    uint64_t bytes = 0, at = 0;
    uint32_t first = list->count;
    while (first > 0 && bytes < bytes_max)
        bytes += change_bytes(engine, mq_slab_at(&engine->topics, (uint32_t)list->at[--first]));
    *authors = put_authors(engine, list, first, NULL);
    uint8_t *changes = calloc(1, bytes + *authors + 1);
    for (uint32_t i = first; changes != NULL && i < list->count; i++) {
        mq_topic *topic = mq_slab_at(&engine->topics, (uint32_t)list->at[i]);
        put_change(engine, topic, changes + at);
        at += change_bytes(engine, topic);
        topic->changed = false;
    }
    if (changes != NULL) {
        put_authors(engine, list, first, changes + at);
        list->count = first;
    }
    *length = at;
    return changes;
}
