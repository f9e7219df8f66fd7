/* SPDX-License-Identifier: Apache-2.0
 *
 * Creation and end of a run: clients, topics, groups, windows; and the histograms.
 */
#include "load/load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/un.h>

#define OUT_ALL_BYTES (4u * 1024 * 1024) /* total of the output buffers of few publishers */
#define OUT_MIN_BYTES 2048u
#define OUT_MAX_BYTES (128u * 1024)
/* 256 messages of a stream: order inside one connection. */
#define WORDS_OWN \
    4
/* 65,536 messages: members of a shared subscription differ by their buffered messages. */
#define WORDS_SHARED \
    1024

bool ld_room(ld_buffer *buffer, uint32_t more)
{
    if (buffer->start == buffer->end)
        buffer->start = buffer->end = 0;
    if (buffer->capacity - buffer->end >= more)
        return true;
    uint32_t used = buffer->end - buffer->start;
    if (buffer->start > 0) {
        memmove(buffer->at, buffer->at + buffer->start, used);
        buffer->start = 0;
        buffer->end = used;
    }
    if (buffer->capacity - used >= more)
        return true;
    uint32_t capacity = buffer->capacity ? buffer->capacity : 64;
    while (capacity - used < more) {
        if (capacity > UINT32_MAX / 2)
            return false;
        capacity *= 2;
    }
    uint8_t *at = realloc(buffer->at, capacity);
    if (at == NULL)
        return false;
    buffer->at = at;
    buffer->capacity = capacity;
    return true;
}

bool ld_put(ld_buffer *buffer, const void *bytes, uint32_t length)
{
    if (length == 0)
        return true;
    if (!ld_room(buffer, length))
        return false;
    memcpy(buffer->at + buffer->end, bytes, length);
    buffer->end += length;
    return true;
}

bool ld_list_add(ld_list *list, uint32_t number)
{
    if (list->count == list->capacity) {
        uint32_t capacity = list->capacity ? 2 * list->capacity : 64;
        uint32_t *at = realloc(list->at, capacity * sizeof *at);
        if (at == NULL)
            return false;
        list->at = at;
        list->capacity = capacity;
    }
    list->at[list->count++] = number;
    return true;
}

void ld_fail(ld_run *run, int kind, int64_t detail)
{
    if (run->counters.failed[kind]++ == 0)
        run->counters.detail[kind] = detail;
}

/* Make room for `more` bytes after `length` of an array that only grows. */
static bool grow(uint8_t **at, uint64_t length, uint64_t *capacity, uint64_t more)
{
    uint64_t wanted = *capacity ? *capacity : 4096;
    while (wanted < length + more)
        wanted *= 2;
    if (wanted == *capacity)
        return true;
    uint8_t *grown = realloc(*at, wanted);
    if (grown == NULL)
        return false;
    *at = grown;
    *capacity = wanted;
    return true;
}

/* ---- histograms ---- */

uint32_t ld_bucket(uint64_t value)
{
    if (value < 1u << LD_BUCKET_BITS)
        return (uint32_t)value;
    uint32_t shift = 63 - (uint32_t)__builtin_clzll(value) - LD_BUCKET_BITS;
    uint32_t bucket = ((shift + 1) << LD_BUCKET_BITS) + (uint32_t)(value >> shift) - (1u << LD_BUCKET_BITS);
    return bucket < LD_BUCKETS ? bucket : LD_BUCKETS - 1;
}

uint64_t ld_bucket_floor(uint32_t bucket)
{
    uint32_t octave = bucket >> LD_BUCKET_BITS, low = bucket & ((1u << LD_BUCKET_BITS) - 1);
    return octave == 0 ? low : (uint64_t)(low + (1u << LD_BUCKET_BITS)) << (octave - 1);
}

void ld_record(ld_run *run, uint32_t which, uint64_t value_ns)
{
    uint64_t *counts = run->histograms[which];
    counts[ld_bucket(value_ns)]++;
    if (value_ns < counts[LD_BUCKETS])
        counts[LD_BUCKETS] = value_ns;
    if (value_ns > counts[LD_BUCKETS + 1])
        counts[LD_BUCKETS + 1] = value_ns;
}

const uint64_t *ld_histogram(const ld_run *run, uint32_t which)
{
    return which <= LD_CONNECTED ? run->histograms[which] : NULL;
}

/* ---- the run ---- */

static bool address_make(ld_run *run, const char *text, uint16_t port)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)run->address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)run->address;
    struct sockaddr_un *local = (struct sockaddr_un *)(void *)run->address;
    size_t length = strlen(text);
    if (text[0] == '/' || text[0] == '@') {
        if (length >= sizeof local->sun_path)
            return false;
        local->sun_family = AF_UNIX;
        memcpy(local->sun_path, text, length);
        if (text[0] == '@')
            local->sun_path[0] = 0;
        run->address_length = (uint32_t)(offsetof(struct sockaddr_un, sun_path) + length + (text[0] == '/'));
    } else if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        run->address_length = sizeof *v4;
    } else if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        run->address_length = sizeof *v6;
    }
    return run->address_length > 0;
}

static bool settings_hold(const ld_settings *settings)
{
    if (settings->pattern_length < 1 || settings->pattern_length > LD_PATTERN_MAX)
        return false;
    for (uint32_t i = 0; i < settings->pattern_length; i++)
        if (settings->pattern[i] > 2)
            return false;
    return settings->window >= 1 && settings->window <= 65535 && settings->connecting_max >= 1 &&
           (settings->version == 4 || settings->version == 5) && settings->payload_bytes < 1u << 28 &&
           settings->connects_per_s >= 0 && settings->messages_per_s >= 0 &&
           (settings->outstanding == 0 || settings->payload_bytes >= LD_STAMP_BYTES);
}

ld_run *ld_open(const ld_settings *settings, const char *address, uint16_t port)
{
    errno = EINVAL;
    if (!settings_hold(settings))
        return NULL;
    errno = ENOMEM;
    ld_run *run = calloc(1, sizeof *run);
    if (run == NULL)
        return NULL;
    run->settings = *settings;
    run->random = settings->run | 1;
    run->epoll = run->timer = -1;
    for (int i = 0; i < 3; i++)
        run->histograms[i][LD_BUCKETS] = UINT64_MAX;
    run->receive_capacity = LD_RECEIVE_BYTES;
    run->receive = malloc(run->receive_capacity);
    int error = run->receive == NULL                ? ENOMEM
                : !address_make(run, address, port) ? EINVAL
                                                    : ld_loop_open(run);
    if (error == 0)
        return run;
    ld_close(run);
    errno = error;
    return NULL;
}

static void group_free(ld_group *group, uint32_t streams)
{
    if (group->trackers != NULL)
        for (uint32_t i = 0; i < streams; i++)
            free(group->trackers[i]);
    free(group->trackers);
}

void ld_close(ld_run *run)
{
    ld_loop_close(run);
    for (uint32_t i = 0; i < run->client_count; i++) {
        free(run->clients[i].out.at);
        free(run->clients[i].rest.at);
        free(run->clients[i].flights);
        free(run->clients[i].free);
    }
    for (uint32_t i = 0; i < run->group_count; i++)
        group_free(&run->groups[i], 3 * run->topic_count);
    ld_list *lists[] = {&run->publishers, &run->ready, &run->working, &run->starved};
    for (int i = 0; i < 4; i++)
        free(lists[i]->at);
    free(run->groups);
    free(run->clients);
    free(run->topics);
    free(run->frames);
    free(run->names);
    free(run->receive);
    free(run);
}

int64_t ld_group_add(ld_run *run, int shared)
{
    ld_group *groups = realloc(run->groups, (run->group_count + 1) * sizeof *groups);
    if (groups == NULL)
        return -ENOMEM;
    run->groups = groups;
    groups[run->group_count] = (ld_group){.words = shared ? WORDS_SHARED : WORDS_OWN};
    return run->group_count++;
}

int64_t ld_client_add(ld_run *run, const uint8_t *connect, uint32_t connect_length, uint32_t group,
                      const uint8_t *subscribe, uint32_t subscribe_length, uint32_t subacks)
{
    uint64_t bytes = (uint64_t)connect_length + subscribe_length;
    if ((group != LD_NO_GROUP && group >= run->group_count) || connect_length == 0)
        return -EINVAL;
    if (run->client_count == run->client_capacity) {
        uint32_t capacity = run->client_capacity ? 2 * run->client_capacity : 64;
        ld_client *clients = realloc(run->clients, capacity * sizeof *clients);
        if (clients == NULL)
            return -ENOMEM;
        run->clients = clients;
        run->client_capacity = capacity;
    }
    if (!grow(&run->frames, run->frames_length, &run->frames_capacity, bytes))
        return -ENOMEM;
    ld_client *client = &run->clients[run->client_count];
    *client = (ld_client){.fd = -1, .group = group, .subacks = subacks};
    client->hello_at = run->frames_length;
    client->hello_length = connect_length;
    client->subscribe_at = client->hello_at + connect_length;
    client->subscribe_length = subscribe_length;
    memcpy(run->frames + client->hello_at, connect, connect_length);
    if (subscribe_length > 0)
        memcpy(run->frames + client->subscribe_at, subscribe, subscribe_length);
    run->frames_length += bytes;
    return run->client_count++;
}

/* Set up the packet identifiers of a client, all free.  The broker's Receive Maximum can only reduce the
 * window. */
bool ld_window_make(ld_run *run, ld_client *client, uint32_t receive_max)
{
    uint32_t window = receive_max < run->settings.window ? receive_max : run->settings.window;
    if (client->flights == NULL) {
        client->flights = calloc((size_t)window + 1, sizeof *client->flights);
        client->free = calloc(window, sizeof *client->free);
        if (client->flights == NULL || client->free == NULL)
            return false;
    }
    for (uint32_t i = 0; i < window; i++)
        client->free[i] = (uint16_t)(i + 1);
    client->window = client->free_count = window;
    return true;
}

int ld_topics_add(ld_run *run, uint32_t number, const uint8_t *names, const uint16_t *lengths, uint32_t count,
                  uint32_t fan)
{
    if (number >= run->client_count || run->clients[number].topic_count > 0 || count == 0 ||
        count > (UINT32_MAX - 1) / 3 - run->topic_count)
        return -EINVAL;
    ld_topic *topics = realloc(run->topics, (size_t)(run->topic_count + count) * sizeof *topics);
    if (topics == NULL)
        return -ENOMEM;
    run->topics = topics;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += lengths[i];
    if (!grow(&run->names, run->names_length, &run->names_capacity, bytes) ||
        !ld_list_add(&run->publishers, number))
        return -ENOMEM;
    memcpy(run->names + run->names_length, names, bytes);
    ld_client *client = &run->clients[number];
    client->turn = run->publishers.count - 1;
    client->topic_first = run->topic_count;
    client->topic_count = count;
    client->fan = fan;
    for (uint32_t i = 0; i < count; i++) {
        topics[run->topic_count++] = (ld_topic){
            .name_at = run->names_length, .publisher = number, .name_length = lengths[i]};
        run->names_length += lengths[i];
        run->topic_longest = lengths[i] > run->topic_longest ? lengths[i] : run->topic_longest;
    }
    uint32_t chunk = OUT_ALL_BYTES / run->publishers.count;
    run->out_chunk = chunk < OUT_MIN_BYTES ? OUT_MIN_BYTES : chunk > OUT_MAX_BYTES ? OUT_MAX_BYTES : chunk;
    return 0;
}

const ld_counters *ld_counters_of(ld_run *run)
{
    ld_counters *counters = &run->counters;
    uint64_t sent = counters->sent[0] + counters->sent[1] + counters->sent[2];
    counters->unacknowledged = run->sent_with_id - run->acked_in_all;
    counters->unsent = run->scheduled > sent ? run->scheduled - sent : 0;
    return counters;
}

uint64_t ld_client_sent(const ld_run *run, uint32_t number, uint32_t qos)
{
    uint64_t sent = 0;
    if (number >= run->client_count || qos > 2)
        return 0;
    const ld_client *client = &run->clients[number];
    for (uint32_t i = 0; i < client->topic_count; i++)
        sent += run->topics[client->topic_first + i].sequence[qos];
    return sent;
}

const ld_tally *ld_tally_of(const ld_run *run, uint32_t group)
{
    return group < run->group_count ? &run->groups[group].tally : NULL;
}
