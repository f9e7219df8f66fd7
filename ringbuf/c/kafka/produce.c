/* SPDX-License-Identifier: Apache-2.0
 *
 * Records for librdkafka and their delivery reports: work per message, done here and not in Python.
 *
 * Never decides to send or to repeat, and keeps no state: the library copies each message, and returns the
 * address of its mark at its end.
 */
#include "kafka/kafka.h"

#include <stdio.h>
#include <string.h>

#define DIGITS_MAX 20 /* digits of a 64-bit number */

int rb_kafka_produce(const rb_kafka_to *to, rb_kafka_flight *flight, rb_kafka_mark *mark,
                     const rb_kafka_message *message)
{
    mark->flight = flight;
    kafka_producev *producev = (kafka_producev *)to->producev;
    int last = message->properties_length > 0 ? KAFKA_HEADER : KAFKA_END;
    return producev(to->client, KAFKA_TOPIC, to->topic, KAFKA_FLAGS, KAFKA_COPY, KAFKA_VALUE, message->value,
                    (size_t)message->value_length, KAFKA_KEY, message->key, (size_t)message->key_length,
                    KAFKA_TIMESTAMP, message->timestamp_ms, KAFKA_OPAQUE, mark, KAFKA_HEADER, "brim-source",
                    to->source, (ssize_t)to->source_length, KAFKA_HEADER, "brim-record", message->identity,
                    (ssize_t)message->identity_length, last, "mqtt-properties", message->properties,
                    (ssize_t)message->properties_length, KAFKA_END);
}

/* Write `number` as text, followed by `after`.  Returns the end. */
static uint8_t *put_number(uint8_t *to, uint64_t number, const char *after)
{
    char digits[DIGITS_MAX];
    int count = 0;
    do
        digits[count++] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    while (count > 0)
        *to++ = (uint8_t)digits[--count];
    while (*after != 0)
        *to++ = (uint8_t)*after++;
    return to;
}

/* Fill a message from the record at `position`, without its identity; its header goes to *header.  False:
 * impossible lengths. */
static bool message_of(const uint8_t *bytes, uint64_t length, uint64_t position, rb_record *header,
                       rb_kafka_message *out)
{
    rb_parts parts;
    uint64_t unused;
    if (position >= length || rb_record_at(bytes + position, length - position, header, &parts, &unused) == 0)
        return false;
    const uint8_t *record = bytes + position;
    *out = (rb_kafka_message){.key = record + RB_RECORD_HEADER_BYTES,
                              .key_length = header->key_length,
                              .value = record + parts.payload_position,
                              .value_length = parts.payload_length,
                              .properties = record + parts.properties_position,
                              .properties_length = parts.properties_length,
                              .timestamp_ms = (int64_t)(header->timestamp_ns / 1000000)};
    return true;
}

uint64_t rb_kafka_produce_records(const rb_kafka_to *to, rb_kafka_flight *flight, rb_kafka_mark *marks,
                                  const uint8_t *bytes, uint64_t length, const uint64_t *positions,
                                  uint64_t from, uint64_t count, int *error)
{
    rb_record header;
    rb_kafka_message message;
    uint8_t identity[3 * (DIGITS_MAX + 1)];
    *error = 0;
    for (uint64_t i = from; i < count; i++) {
        if (!message_of(bytes, length, positions[i], &header, &message)) {
            *error = RB_CORRUPT;
            return i;
        }
        uint8_t *end = put_number(identity, header.offset, " ");
        end = put_number(end, header.timestamp_ns, " ");
        end = put_number(end, header.flags & (RB_FLAG_QOS | RB_FLAG_RETAIN), "");
        message.identity = identity;
        message.identity_length = (uint64_t)(end - identity);
        if ((*error = rb_kafka_produce(to, flight, &marks[i], &message)) != 0)
            return i;
    }
    return count;
}

static void take_deliveries(const rb_kafka_events *events, void *event)
{
    kafka_event_message *next = (kafka_event_message *)events->message;
    const kafka_message *message;
    while ((message = next(event)) != NULL) {
        rb_kafka_mark *mark = message->opaque;
        if (mark == NULL)
            continue;
        mark->error = message->err;
        mark->flight->failed += message->err != 0;
        mark->flight->ended++;
    }
}

static void take_error(const rb_kafka_events *events, void *event, rb_kafka_error *reply)
{
    int error = ((kafka_event_number *)events->error)(event);
    bool is_specific = error != KAFKA_NO_CONNECTION && error != KAFKA_NO_BROKERS;
    if (reply->error != 0 && !is_specific)
        return;
    reply->error = error;
    const char *text = ((kafka_event_text *)events->text)(event);
    snprintf(reply->text, sizeof reply->text, "%s", text == NULL ? "" : text);
}

uint64_t rb_kafka_poll(const rb_kafka_events *events, int timeout_ms, rb_kafka_error *reply)
{
    kafka_poll *poll = (kafka_poll *)events->poll;
    uint64_t count = 0;
    void *event;
    while ((event = poll(events->queue, count == 0 ? timeout_ms : 0)) != NULL) {
        int type = ((kafka_event_number *)events->type)(event);
        if (type == KAFKA_DELIVERIES)
            take_deliveries(events, event);
        else if (type == KAFKA_ERROR)
            take_error(events, event, reply);
        ((kafka_event_destroy *)events->destroy)(event);
        count++;
    }
    return count;
}
