/* SPDX-License-Identifier: Apache-2.0
 *
 * Selection of records for a consumer group.  Declarations only, as in ringbuf_api.h.
 */

typedef struct rb_selection {
    const char *filters;            /* in: valid topic filters, without separators */
    const uint32_t *filter_lengths; /* in */
    uint64_t filters_count;         /* in; 0: records of any topic are selected */
    const uint64_t *done;           /* in: offsets that are not selected, rising */
    uint64_t done_count;            /* in */
    uint64_t limit;                 /* in: most records to select, at least 1 */
    uint64_t until_ns;              /* in: the first record to select that is later ends the selection */
    uint8_t *bytes;                 /* out: the selected records; room as for all input bytes */
    uint64_t *offsets;              /* out: their offsets; room for one per 32 input bytes */
    uint64_t length, count;         /* out: bytes, and records, selected */
    uint64_t end_offset;            /* out: every record below it was checked, and no other */
    uint64_t next_ns;               /* out: time of the record at end_offset if that is too late, or 0 */
} rb_selection;

/* Copy the records of a run (`length` bytes of `epoch`, dense from `first_offset` on) whose topic matches a
 * filter and that are not done, up to the limit, or to the first of them that is too late.  RB_OK, or
 * RB_CORRUPT: the record at end_offset does not verify. */
int rb_records_select(const uint8_t *bytes, uint64_t length, uint32_t epoch, uint64_t first_offset,
                      rb_selection *selection);
