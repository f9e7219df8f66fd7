/* SPDX-License-Identifier: Apache-2.0
 *
 * Send permission of publishers, and their PUBLISH packets.
 */
#include "load/load.h"

#include <stdlib.h>

static bool is_finished(const ld_run *run, const ld_client *client)
{
    return run->settings.messages_max > 0 && client->sent >= run->settings.messages_max;
}

static bool waits_for_deliveries(const ld_run *run, const ld_client *client)
{
    uint64_t most = (uint64_t)run->settings.outstanding * client->fan;
    return most > 0 && client->sent * client->fan >= client->delivered + most;
}

static bool waits_for_window(const ld_run *run, const ld_client *client)
{
    return run->settings.pattern[client->pattern_next] > 0 && client->free_count == 0;
}

bool ld_may_send(const ld_run *run, const ld_client *client)
{
    return run->phase == LD_PUBLISHING && client->state == LD_READY && client->topic_count > 0 &&
           !client->is_blocked && !is_finished(run, client) &&
           (run->settings.messages_per_s == 0 || client->sent < client->due) &&
           !waits_for_window(run, client) && !waits_for_deliveries(run, client);
}

void ld_ready(ld_run *run, ld_client *client)
{
    if (client->is_ready || !ld_may_send(run, client))
        return;
    client->is_ready = ld_list_add(&run->ready, (uint32_t)(client - run->clients));
    if (!client->is_ready)
        ld_fail(run, LD_FAIL_MEMORY, 0);
}

void ld_starve(ld_run *run, ld_client *client)
{
    if (client->is_starved || !waits_for_deliveries(run, client))
        return;
    client->is_starved = ld_list_add(&run->starved, (uint32_t)(client - run->clients));
    if (!client->is_starved)
        ld_fail(run, LD_FAIL_MEMORY, 0);
}

static ld_topic *topic_next(ld_run *run, ld_client *client, uint32_t *number)
{
    uint32_t next = client->topic_next;
    if (run->settings.random_topics) {
        run->random ^= run->random << 13;
        run->random ^= run->random >> 7;
        run->random ^= run->random << 17;
        next = (uint32_t)((run->random >> 32) * client->topic_count >> 32);
    } else if (++client->topic_next == client->topic_count) {
        client->topic_next = 0;
    }
    *number = client->topic_first + next;
    return &run->topics[*number];
}

static uint16_t identifier_take(ld_run *run, ld_client *client, uint32_t qos)
{
    uint16_t id = client->free[client->free_first];
    client->free_first = client->free_first + 1 == client->window ? 0 : client->free_first + 1;
    client->free_count--;
    client->flights[id] = (ld_flight){run->now_ns, qos == 1 ? 0x40 : 0x50};
    run->sent_with_id++;
    return id;
}

/* Time at which the next message of `client` was due: messages take turns among the publishers. */
static uint64_t due_ns(const ld_run *run, const ld_client *client)
{
    if (run->settings.messages_per_s == 0)
        return run->now_ns;
    double number = (double)client->sent * run->publishers.count + client->turn;
    return run->start_ns + (uint64_t)(number / run->settings.messages_per_s * 1e9);
}

static void packet_put(ld_run *run, ld_client *client)
{
    const ld_settings *settings = &run->settings;
    uint32_t number, qos = settings->pattern[client->pattern_next];
    if (++client->pattern_next == settings->pattern_length)
        client->pattern_next = 0;
    ld_topic *topic = topic_next(run, client, &number);
    uint32_t length = 2u + topic->name_length + (qos ? 2 : 0) + (settings->version == 5) +
                      settings->payload_bytes;
    uint8_t *to = client->out.at + client->out.end;
    *to++ = (uint8_t)(0x30 | qos << 1 | (settings->retain ? 1 : 0));
    to = ld_varint_put(to, length);
    *to++ = (uint8_t)(topic->name_length >> 8);
    *to++ = (uint8_t)topic->name_length;
    memcpy(to, run->names + topic->name_at, topic->name_length);
    to += topic->name_length;
    if (qos > 0) {
        uint16_t id = identifier_take(run, client, qos);
        *to++ = (uint8_t)(id >> 8);
        *to++ = (uint8_t)id;
    }
    if (settings->version == 5)
        *to++ = 0; /* no properties */
    uint64_t sequence = topic->sequence[qos]++;
    if (settings->payload_bytes >= LD_STAMP_BYTES) {
        ld_stamp stamp = {settings->run, 3 * number + qos, sequence, due_ns(run, client)};
        memcpy(to, &stamp, sizeof stamp);
        memset(to + LD_STAMP_BYTES, 'x', settings->payload_bytes - LD_STAMP_BYTES);
    } else {
        memset(to, 'x', settings->payload_bytes);
    }
    client->out.end = (uint32_t)(to + settings->payload_bytes - client->out.at);
    client->sent++;
    run->sent_ns = run->now_ns;
    run->counters.sent[qos]++;
    run->counters.expected += client->fan;
}

void ld_fill(ld_run *run, ld_client *client)
{
    uint32_t longest = 5 + 2 + run->topic_longest + 2 + 1 + run->settings.payload_bytes;
    uint32_t chunk = run->out_chunk > longest ? run->out_chunk : longest;
    if (!ld_room(&client->out, chunk)) {
        ld_fail(run, LD_FAIL_MEMORY, 0);
        return;
    }
    uint32_t until = client->out.end + chunk - longest;
    while (client->out.end <= until && ld_may_send(run, client))
        packet_put(run, client);
    if (is_finished(run, client))
        run->finished++;
    else
        ld_starve(run, client);
}
