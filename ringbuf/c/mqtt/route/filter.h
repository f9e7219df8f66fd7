/* SPDX-License-Identifier: Apache-2.0
 *
 * Match of one filter and one name, for streams, retained messages, consumer groups and Python.
 */
#ifndef BRIM_MQTT_FILTER_H
#define BRIM_MQTT_FILTER_H

#include <stdbool.h>
#include <stdint.h>

/* True if a valid filter matches a valid name, as defined by edge.mqtt.topic_filters.matches(). */
bool mq_filter_matches(const char *filter, uint32_t filter_length, const char *name, uint32_t name_length);

#endif
