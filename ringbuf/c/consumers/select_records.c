/* SPDX-License-Identifier: Apache-2.0
 *
 * Selection: the records of a run whose topics match the filters of a consumer group.
 *
 * Every record is verified, including those left out: a damaged topic must not decide about a record.
 */
#include "consumers/consumers.h"

#include <string.h>

#include "base/utf8.h"
#include "mqtt/route/filter.h"

static bool matches(const rb_selection *selection, const uint8_t *key, uint32_t length)
{
    const char *filter = selection->filters;
    for (uint64_t i = 0; i < selection->filters_count; i++) {
        if (mq_filter_matches(filter, selection->filter_lengths[i], (const char *)key, length))
            return rb_is_utf8(key, length); /* other keys are not topics */
        filter += selection->filter_lengths[i];
    }
    return selection->filters_count == 0;
}

static void take(rb_selection *selection, const uint8_t *bytes, uint64_t span, uint64_t offset)
{
    memcpy(selection->bytes + selection->length, bytes, span);
    selection->length += span;
    selection->offsets[selection->count++] = offset;
}

int rb_records_select(const uint8_t *bytes, uint64_t length, uint32_t epoch, uint64_t first_offset,
                      rb_selection *selection)
{
    rb_record header;
    rb_parts parts;
    uint64_t unused, span, done = 0;
    selection->length = selection->count = selection->next_ns = 0;
    selection->end_offset = first_offset;
    for (uint64_t at = 0; at < length && selection->count < selection->limit;
         at += span, selection->end_offset++) {
        uint64_t offset = selection->end_offset;
        span = rb_record_at(bytes + at, length - at, &header, &parts, &unused);
        if (span == 0 || header.offset != offset || !rb_record_verifies(&header, &parts, bytes + at, epoch))
            return RB_CORRUPT;
        while (done < selection->done_count && selection->done[done] < offset)
            done++;
        if ((done == selection->done_count || selection->done[done] != offset) &&
            matches(selection, bytes + at + RB_RECORD_HEADER_BYTES, header.key_length)) {
            if (header.timestamp_ns > selection->until_ns) {
                selection->next_ns = header.timestamp_ns;
                break;
            }
            take(selection, bytes + at, span, offset);
        }
    }
    return RB_OK;
}
