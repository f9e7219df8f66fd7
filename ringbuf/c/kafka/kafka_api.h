/* SPDX-License-Identifier: Apache-2.0
 *
 * Records for librdkafka, and their delivery reports, in batches, as Python sees it (kafka/).  Declarations
 * only, as in ringbuf_api.h.
 *
 * The library is not linked.  Python has loaded it, and passes the addresses of the functions used here.
 */

/* Destination of the records. */
typedef struct rb_kafka_to {
    void *producev;     /* rd_kafka_producev() */
    void *client, *topic; /* rd_kafka_t, rd_kafka_topic_t */
    const char *source; /* value of the header brim-source */
    uint64_t source_length;
} rb_kafka_to;

/* A group of messages that are awaited together, and one message of it.  A mark must stay at its address
 * until its message has ended, or the client is destroyed. */
typedef struct rb_kafka_flight {
    uint64_t ended, failed;
} rb_kafka_flight;
typedef struct rb_kafka_mark {
    rb_kafka_flight *flight;
    int32_t error; /* set at the end: 0, or an error code of librdkafka */
} rb_kafka_mark;

/* One message: a part that is NULL or empty is not sent, except the value, which is then empty.
 * `identity` is the value of the header brim-record. */
typedef struct rb_kafka_message {
    const uint8_t *key, *value, *identity, *properties;
    uint64_t key_length, value_length, identity_length, properties_length;
    int64_t timestamp_ms;
} rb_kafka_message;

/* Pass a message, which librdkafka copies.  0, or an error code of librdkafka. */
int rb_kafka_produce(const rb_kafka_to *to, rb_kafka_flight *flight, rb_kafka_mark *mark,
                     const rb_kafka_message *message);

/* Pass the records at positions[from] .. positions[count - 1] of `bytes`, with marks[from] and so on, until
 * one is refused.  Returns its number with the cause in *error, or count. */
uint64_t rb_kafka_produce_records(const rb_kafka_to *to, rb_kafka_flight *flight, rb_kafka_mark *marks,
                                  const uint8_t *bytes, uint64_t length, const uint64_t *positions,
                                  uint64_t from, uint64_t count, int *error);

/* librdkafka's functions for events. */
typedef struct rb_kafka_events {
    void *poll, *type, *message, *error, *text, *destroy;
    void *queue; /* rd_kafka_queue_t */
} rb_kafka_events;

/* Error of the client that belongs to no message.  Of several, the first one other than a lost connection. */
typedef struct rb_kafka_error {
    int error;
    char text[512];
} rb_kafka_error;

/* Take events of the client: wait at most `timeout_ms` for the first one, then take all pending
 * ones.  Returns their number.  One thread at a time. */
uint64_t rb_kafka_poll(const rb_kafka_events *events, int timeout_ms, rb_kafka_error *reply);
