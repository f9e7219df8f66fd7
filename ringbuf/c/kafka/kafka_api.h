/* SPDX-License-Identifier: Apache-2.0
 *
 * What Python sees of kafka/: records into librdkafka, and its answers, a batch at a time.  Declarations
 * only, as in ringbuf_api.h.
 *
 * The library is not linked: Python has it loaded, and gives the addresses of what is called here.
 */

/* Where records go. */
typedef struct rb_kafka_to {
    void *producev;     /* rd_kafka_producev() */
    void *client, *topic; /* rd_kafka_t, rd_kafka_topic_t */
    const char *source; /* value of the header brim-source */
    uint64_t source_length;
} rb_kafka_to;

/* Messages that are waited for together, and one of them.  A mark stays where it is until its message has
 * ended, or the client is gone. */
typedef struct rb_kafka_flight {
    uint64_t ended, failed;
} rb_kafka_flight;
typedef struct rb_kafka_mark {
    rb_kafka_flight *flight;
    int32_t error; /* once it has ended: 0, or a code of librdkafka's */
} rb_kafka_mark;

/* One message: a part that is NULL or empty is not sent, except the value, which is then empty.
 * `identity` is the value of the header brim-record. */
typedef struct rb_kafka_message {
    const uint8_t *key, *value, *identity, *properties;
    uint64_t key_length, value_length, identity_length, properties_length;
    int64_t timestamp_ms;
} rb_kafka_message;

/* Hands a message over, which is copied.  0, or a code of librdkafka's. */
int rb_kafka_produce(const rb_kafka_to *to, rb_kafka_flight *flight, rb_kafka_mark *mark,
                     const rb_kafka_message *message);

/* Hands over the records at positions[from] .. positions[count - 1] of `bytes`, with marks[from] and so on,
 * until one is refused: its number, with the reason in *error; or count. */
uint64_t rb_kafka_produce_records(const rb_kafka_to *to, rb_kafka_flight *flight, rb_kafka_mark *marks,
                                  const uint8_t *bytes, uint64_t length, const uint64_t *positions,
                                  uint64_t from, uint64_t count, int *error);

/* librdkafka's functions for events. */
typedef struct rb_kafka_events {
    void *poll, *type, *message, *error, *text, *destroy;
    void *queue; /* rd_kafka_queue_t */
} rb_kafka_events;

/* What the client has said that was of no message; of several, the first that is no mere loss of a
 * connection. */
typedef struct rb_kafka_said {
    int error;
    char text[512];
} rb_kafka_said;

/* Takes what the client tells: waits for the first event, `timeout_ms` at most, and takes all that are there.
 * How many there were.  One thread at a time. */
uint64_t rb_kafka_poll(const rb_kafka_events *events, int timeout_ms, rb_kafka_said *said);
