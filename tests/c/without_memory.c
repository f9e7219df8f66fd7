/* SPDX-License-Identifier: Apache-2.0
 *
 * Changes of the engine while one allocation fails: each is complete, or refused.
 *
 *     without_memory     checks itself; status 0
 *
 * To be linked with --wrap=malloc, calloc and realloc.
 */
#include <string.h>
#include <sys/mman.h>

#include "mqtt/mqtt.h"
#include "failing_memory.h"
#include "must.h"

#define FAILURES 12 /* more than the allocations of one change */

static mq_engine *engine_new(void)
{
    static const mq_limits limits = {.topics_max = 16,
                                     .topics_max_bytes = 1000,
                                     .retained_max = 4,
                                     .retained_max_bytes = 4096,
                                     .share_percent = 100,
                                     .queues_max_bytes = 4096,
                                     .spill_max_bytes = 300000};
    static const uint64_t seed[2] = {1, 2};
    mq_engine *engine = mq_engine_new(&limits, seed);
    must(engine != NULL, "there is memory");
    return engine;
}

/* Retain `payload` on the topic; allocation number `fails` fails, 0: none. */
static void retain(mq_engine *engine, mq_topic *topic, const char *payload, uint32_t fails)
{
    mq_message message = {.payload = payload, .payload_length = (uint32_t)strlen(payload)};
    fails_in = fails;
    mq_retain(engine, topic, &message, 0);
    fails_in = 0;
}

/* Bytes of the next save. */
static uint64_t saved_bytes(mq_engine *engine)
{
    uint64_t length, authors;
    mq_retained_save_begin(engine, false);
    uint8_t *changes = mq_retained_changes(engine, UINT64_MAX, &length, &authors);
    must(changes != NULL, "there is memory");
    free(changes);
    return length;
}

/* A change that is not listed makes the next save complete, and due. */
static void retained_changes_are_saved(uint32_t fails, const char *payload)
{
    mq_engine *engine = engine_new();
    mq_topic *topic = mq_topic_add(engine, "t", 1, 1, false);
    retain(engine, topic, "before", 0);
    engine->retained_kept = true;
    const mq_blob *before = topic->retained;
    retain(engine, topic, payload, fails);
    uint32_t steps = 2 * engine->topics.created;
    must(topic->retained == before || topic->changed || engine->retained_due, "the change is saved soon");
    must(!engine->retained_unlisted || mq_topic_idle(engine, &steps) == NULL, "the change has its topic");
    bool is_saved = saved_bytes(engine) > 0;
    must(topic->retained == before || is_saved, "the change is saved");
    must(saved_bytes(engine) == 0 && !engine->retained_due, "it is saved once");
    mq_engine_free(engine);
}

/* A member is one in the group and in its session. */
static void a_member_joins_or_does_not(uint32_t fails)
{
    mq_engine *engine = engine_new();
    mq_session *queue = mq_share_open(engine, 10, false), *session = mq_slab_take(&engine->sessions);
    uint32_t ids = mq_subscription_ids_take(engine, mq_handle(&queue->item), NULL, 0);
    fails_in = fails;
    bool joined = mq_share_join(engine, queue, session, ids << MQ_OPTION_IDS_SHIFT);
    fails_in = 0;
    must(queue->group->count == joined && session->shares.count == joined,
         "both have the member, or neither has it");
    mq_subscription_ids_drop(engine, ids);
    mq_engine_free(engine);
}

/* The extent of a copy that no session needs is reclaimed later. */
static void a_released_copy_is_listed(uint32_t fails)
{
    static const uint32_t known[] = {1};
    static const mq_ring ring = {.ring_name = "r", .ring_name_length = 1, .epoch = 1};
    mq_engine *engine = engine_new();
    int fd = memfd_create("copies", MFD_CLOEXEC);
    must(mq_spill_open(engine, fd, known, 1) == MQ_SPILL_NEW, "there is a file");
    mq_blob *copy = mq_spill_reserve(engine, &ring, 0, MQ_LARGE_BYTES);
    must(copy != NULL, "there is room");
    copy->record = (rb_record){.length = MQ_LARGE_BYTES};
    mq_spill_commit(engine, copy);
    fails_in = fails;
    mq_spill_release(engine, copy);
    fails_in = 0;
    must(engine->spill.retired.count == 1, "the extent is listed");
    mq_engine_free(engine);
}

int main(void)
{
    for (uint32_t fails = 0; fails < FAILURES; fails++) {
        retained_changes_are_saved(fails, "after");
        retained_changes_are_saved(fails, "");
        a_member_joins_or_does_not(fails);
        a_released_copy_is_listed(fails);
    }
    return 0;
}
