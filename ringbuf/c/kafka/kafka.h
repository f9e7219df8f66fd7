/* SPDX-License-Identifier: Apache-2.0
 *
 * The used part of librdkafka's calling convention; kafka_api.h has every declaration that Python sees.
 * Numbers and structures are those of librdkafka's public, versioned ABI (librdkafka.so.1).
 */
#ifndef BRIM_KAFKA_H
#define BRIM_KAFKA_H

#include <sys/types.h>

#include "base/record.h"

#include "kafka/kafka_api.h"

/* Tags of the arguments of rd_kafka_producev(). */
enum {
    KAFKA_END = 0,
    KAFKA_TOPIC = 2,
    KAFKA_VALUE = 4,
    KAFKA_KEY = 5,
    KAFKA_OPAQUE = 6,
    KAFKA_FLAGS = 7,
    KAFKA_TIMESTAMP = 8,
    KAFKA_HEADER = 9
};
#define KAFKA_COPY 2

enum { KAFKA_DELIVERIES = 1, KAFKA_ERROR = 8 }; /* kinds of events */
enum { KAFKA_NO_CONNECTION = -195, KAFKA_NO_BROKERS = -187 };

typedef struct kafka_message {
    int err;
    void *topic;
    int32_t partition;
    void *payload;
    size_t length;
    void *key;
    size_t key_length;
    int64_t offset;
    void *opaque;
} kafka_message;

typedef int kafka_producev(void *client, ...);
typedef void *kafka_poll(void *queue, int timeout_ms);
typedef int kafka_event_number(void *event);
typedef const kafka_message *kafka_event_message(void *event);
typedef const char *kafka_event_text(void *event);
typedef void kafka_event_destroy(void *event);

#endif
