/* SPDX-License-Identifier: Apache-2.0
 *
 * Input from the broker: acknowledgements advance windows, and messages are compared with the sent ones.
 */
#include "load/load.h"
#include "mqtt/in/reason_codes.h"

#include <stdlib.h>

enum {
    CONNACK = 0x20,
    PUBACK = 0x40,
    PUBREC = 0x50,
    PUBREL = 0x60,
    PUBCOMP = 0x70,
    SUBACK = 0x90,
    PINGRESP = 0xd0,
    DISCONNECT = 0xe0
};

static int answer(ld_run *run, ld_client *client, uint8_t head, uint16_t id)
{
    uint8_t packet[] = {head, 2, (uint8_t)(id >> 8), (uint8_t)id};
    if (ld_put(&client->out, packet, sizeof packet))
        return 0;
    ld_fail(run, LD_FAIL_MEMORY, 0);
    return -1;
}

/* ---- messages ---- */

static ld_tracker *tracker_of(ld_run *run, ld_group *group, uint32_t stream)
{
    if (group->trackers == NULL)
        group->trackers = calloc((size_t)run->topic_count * 3, sizeof *group->trackers);
    if (group->trackers == NULL)
        return NULL;
    if (group->trackers[stream] == NULL)
        group->trackers[stream] = calloc(1, sizeof(ld_tracker) + group->words * sizeof(uint64_t));
    return group->trackers[stream];
}

/* True if this is the first message with its number. */
static bool track(ld_group *group, ld_tracker *tracker, uint64_t sequence, uint32_t qos)
{
    uint64_t mask = group->words - 1, word = sequence >> 6, bit = UINT64_C(1) << (sequence & 63);
    if (sequence >= tracker->next) {
        uint64_t from = (tracker->next + 63) >> 6;
        if (word >= from + group->words)
            from = word - group->words + 1;
        for (; from <= word; from++)
            tracker->seen[from & mask] = 0;
        tracker->seen[word & mask] |= bit;
        tracker->next = sequence + 1;
    } else if (word + group->words <= (tracker->next - 1) >> 6) {
        group->tally.disordered[qos]++; /* too old to detect a duplicate */
    } else if (tracker->seen[word & mask] & bit) {
        group->tally.duplicates[qos]++;
        return false;
    } else {
        tracker->seen[word & mask] |= bit;
        group->tally.disordered[qos]++;
    }
    group->tally.received[qos]++;
    return true;
}

static void message(ld_run *run, ld_client *client, const uint8_t *payload, uint32_t length)
{
    ld_stamp stamp = {.stream = UINT32_MAX};
    run->counters.received++;
    run->counters.moved_ns = run->now_ns;
    if (run->settings.payload_bytes < LD_STAMP_BYTES && length == run->settings.payload_bytes) {
        run->counters.delivered++; /* only its arrival is known */
        return;
    }
    if (length >= LD_STAMP_BYTES)
        memcpy(&stamp, payload, sizeof stamp);
    if (stamp.run != run->settings.run || client->group == LD_NO_GROUP ||
        stamp.stream / 3 >= run->topic_count) {
        run->counters.foreign++;
        return;
    }
    ld_group *group = &run->groups[client->group];
    ld_tracker *tracker = tracker_of(run, group, stamp.stream);
    if (tracker == NULL) {
        ld_fail(run, LD_FAIL_MEMORY, 0);
        return;
    }
    if (run->settings.latency)
        ld_record(run, LD_LATENCY, run->now_ns > stamp.due_ns ? run->now_ns - stamp.due_ns : 0);
    if (track(group, tracker, stamp.sequence, stamp.stream % 3)) {
        run->counters.delivered++;
        run->delivered_ns = run->now_ns;
        run->clients[run->topics[stamp.stream / 3].publisher].delivered++;
    }
}

static int on_publish(ld_run *run, ld_client *client, uint8_t head, const uint8_t *body, uint32_t length)
{
    uint32_t qos = head >> 1 & 3;
    if (length < 2 || qos == 3)
        return -1;
    uint32_t at = 2u + ld_u16(body);
    uint32_t id_at = at;
    at += qos ? 2 : 0;
    if (at > length)
        return -1;
    if (run->settings.version == 5 && (at = ld_properties_end(body, at, length)) == 0)
        return -1;
    message(run, client, body + at, length - at);
    return qos == 0 ? 0 : answer(run, client, qos == 1 ? PUBACK : PUBREC, ld_u16(body + id_at));
}

/* ---- acknowledgements ---- */

static int on_acknowledgement(ld_run *run, ld_client *client, uint8_t type, const uint8_t *body,
                              uint32_t length)
{
    uint16_t id = length < 2 ? 0 : ld_u16(body);
    uint8_t reason = length > 2 ? body[2] : 0;
    if (id == 0 || id > client->window || client->flights[id].waits_for != type)
        return -1;
    run->counters.moved_ns = run->now_ns;
    if (reason >= MQ_REASON_UNSPECIFIED_ERROR)
        ld_fail(run, LD_FAIL_PUBLISH, reason);
    if (type == PUBREC && reason < MQ_REASON_UNSPECIFIED_ERROR) {
        client->flights[id].waits_for = PUBCOMP;
        return answer(run, client, PUBREL | 2, id);
    }
    ld_record(run, LD_ACKNOWLEDGED, run->now_ns - client->flights[id].sent_ns);
    client->flights[id].waits_for = 0;
    uint32_t last = client->free_first + client->free_count++;
    client->free[last < client->window ? last : last - client->window] = id;
    run->counters.acknowledged++;
    run->acked_in_all++;
    ld_ready(run, client);
    return 0;
}

/* ---- the rest ---- */

/* Length of a property after its identifier; 0: unknown property, or incomplete. */
static uint32_t property_length(uint8_t id, const uint8_t *at, uint32_t left)
{
    static const uint8_t fixed[43] = {[0x11] = 4, [0x13] = 2, [0x21] = 2, [0x22] = 2, [0x24] = 1,
                                      [0x25] = 1, [0x27] = 4, [0x28] = 1, [0x29] = 1, [0x2a] = 1};
    uint32_t texts = id == 0x26 ? 2 : 1, length = 0; /* User Property is a pair; all others are one text */
    if (id < sizeof fixed && fixed[id] > 0)
        return fixed[id] <= left ? fixed[id] : 0;
    for (uint32_t i = 0; i < texts; i++) {
        if (left - length < 2 || left - length - 2 < ld_u16(at + length))
            return 0;
        length += 2u + ld_u16(at + length);
    }
    return length;
}

/* Receive Maximum in the properties of CONNACK; 65535 if absent. */
static uint32_t receive_maximum(const uint8_t *at, uint32_t length)
{
    uint32_t all;
    const uint8_t *end = at + ld_properties_end(at, 0, length);
    if (end == at)
        return 65535;
    for (at += ld_varint(at, length, &all); at < end;) {
        uint8_t id = *at++;
        uint32_t of_it = property_length(id, at, (uint32_t)(end - at));
        if (of_it == 0)
            break;
        if (id == 0x21 && ld_u16(at) > 0)
            return ld_u16(at);
        at += of_it;
    }
    return 65535;
}

static void settle(ld_run *run, ld_client *client)
{
    client->state = LD_READY;
    run->settled++;
}

static int on_connack(ld_run *run, ld_client *client, const uint8_t *body, uint32_t length)
{
    uint32_t receive_max = run->settings.version == 5 && length > 2 ? receive_maximum(body + 2, length - 2)
                                                                    : 65535;
    if (client->state != LD_GREETING || length < 2)
        return -1;
    if (body[1] != 0) {
        ld_fail(run, LD_FAIL_REFUSED, body[1]);
        return -2;
    }
    run->connecting--;
    run->counters.connected++;
    ld_record(run, LD_CONNECTED, run->now_ns - client->begun_ns);
    if (client->topic_count > 0 && !ld_window_make(run, client, receive_max)) {
        ld_fail(run, LD_FAIL_MEMORY, 0);
        return -2;
    }
    if (client->subacks == 0) {
        settle(run, client);
    } else if (ld_put(&client->out, run->frames + client->subscribe_at, client->subscribe_length)) {
        client->state = LD_SUBSCRIBING;
    } else {
        ld_fail(run, LD_FAIL_MEMORY, 0);
        return -2;
    }
    return 0;
}

static int on_suback(ld_run *run, ld_client *client, const uint8_t *body, uint32_t length)
{
    uint32_t at = 2;
    if (client->state != LD_SUBSCRIBING || length < 3)
        return -1;
    if (run->settings.version == 5 && (at = ld_properties_end(body, at, length)) == 0)
        return -1;
    for (; at < length; at++)
        if (body[at] >= 0x80) {
            ld_fail(run, LD_FAIL_SUBSCRIBE, body[at]);
            return -2;
        }
    run->counters.subscribed++;
    if (--client->subacks == 0)
        settle(run, client);
    return 0;
}

/* Handle a packet.  0; -1: unexpected; -2: the connection ends, and the cause was counted.
 */
static int packet(ld_run *run, ld_client *client, uint8_t head, const uint8_t *body, uint32_t length)
{
    switch (head & 0xf0) {
    case 0x30:
        return on_publish(run, client, head, body, length);
    case PUBACK:
    case PUBREC:
    case PUBCOMP:
        return on_acknowledgement(run, client, head & 0xf0, body, length);
    case PUBREL:
        return length < 2 ? -1 : answer(run, client, PUBCOMP, ld_u16(body));
    case CONNACK:
        return on_connack(run, client, body, length);
    case SUBACK:
        return on_suback(run, client, body, length);
    case PINGRESP:
        if (!client->pinged)
            return -1;
        client->pinged = false;
        run->pings--;
        run->counters.moved_ns = run->now_ns;
        return 0;
    case DISCONNECT:
        ld_fail(run, LD_FAIL_CLOSED, length > 0 ? body[0] : 0);
        return -2;
    default:
        return -1;
    }
}

int64_t ld_packets(ld_run *run, ld_client *client, const uint8_t *bytes, uint32_t length)
{
    uint32_t at = 0;
    while (length - at >= 2) {
        uint32_t of_it;
        int taken = ld_varint(bytes + at + 1, length - at - 1, &of_it);
        if (taken >= 0 && (taken == 0 || length - at - 1 - (uint32_t)taken < of_it))
            break;
        int result = taken < 0 ? -1 : packet(run, client, bytes[at], bytes + at + 1 + taken, of_it);
        if (result == -1)
            ld_fail(run, LD_FAIL_PROTOCOL, bytes[at]);
        if (result < 0)
            return -1;
        at += 1 + (uint32_t)taken + of_it;
    }
    return at;
}
