/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion of msgpack payloads into columns in Arrow's memory layout: one pass over each payload, without
 * intermediate objects.
 *
 * Payloads are hostile: any publisher may have written them.  Every length is checked against the remaining
 * bytes before use.  Each element takes at least one byte, so a count without its elements ends the payload
 * at once.  Recursion is limited to the paths of the fields; other nested values are skipped without
 * recursion.  Plain reads and writes of the caller's memory; no allocation, no system call.
 */
#include "arrow/msgpack.h"

#include <string.h>

#include "base/utf8.h"
#include "base/record.h"

enum kind { NIL, BOOLEAN, INTEGER, UNSIGNED, FLOAT, STRING, BINARY, EXTENSION, ARRAY, MAP };

typedef struct item {
    enum kind kind;
    uint64_t number;      /* INTEGER: as two's complement; UNSIGNED: above INT64_MAX */
    double real;          /* FLOAT */
    const uint8_t *bytes; /* STRING, BINARY, EXTENSION */
    uint32_t length;      /* number of bytes; ARRAY and MAP: number of elements */
} item;

typedef struct key {
    const uint8_t *name;
    uint8_t length;
    bool last;
} key;

typedef struct unpacker {
    const uint8_t *at, *end;
    uint64_t row, seen, there; /* bits of fields found in this row, and found with a value */
    uint32_t culprit;          /* number of the field that caused the outcome */
    uint32_t count;
    rb_unpack_field *fields;
    key keys[RB_UNPACK_FIELDS_MAX][RB_UNPACK_DEPTH_MAX];
} unpacker;

static uint64_t big_endian(const uint8_t *at, uint32_t size)
{
    uint64_t value = 0;
    for (uint32_t i = 0; i < size; i++)
        value = value << 8 | at[i];
    return value;
}

/* Take `size` bytes as a number, and move past them.  False if the payload ends before. */
static inline bool take(unpacker *from, uint32_t size, uint64_t *out)
{
    if ((uint64_t)(from->end - from->at) < size)
        return false;
    *out = big_endian(from->at, size);
    from->at += size;
    return true;
}

/* Take an item of `length` bytes; an extension has its type in front of them. */
static bool bytes_of(unpacker *from, item *out, enum kind kind, uint64_t length)
{
    uint64_t all = length + (kind == EXTENSION);
    if ((uint64_t)(from->end - from->at) < all)
        return false;
    out->kind = kind;
    out->bytes = from->at + (kind == EXTENSION);
    out->length = (uint32_t)length;
    from->at += all;
    return true;
}

static bool values_of(unpacker *from, item *out, enum kind kind, uint64_t count)
{
    uint64_t values = kind == MAP ? 2 * count : count;
    out->kind = kind;
    out->length = (uint32_t)count;
    return values <= (uint64_t)(from->end - from->at);
}

static bool real_of(unpacker *from, item *out, uint32_t size)
{
    uint64_t bits;
    if (!take(from, size, &bits))
        return false;
    out->kind = FLOAT;
    if (size == 4) {
        uint32_t narrow = (uint32_t)bits;
        float value;
        memcpy(&value, &narrow, sizeof value);
        out->real = (double)value;
    } else {
        memcpy(&out->real, &bits, sizeof out->real);
    }
    return true;
}

/* Take an integer of `size` bytes. */
static bool number_of(unpacker *from, item *out, uint32_t size, bool is_signed)
{
    if (!take(from, size, &out->number))
        return false;
    out->kind = !is_signed && out->number > INT64_MAX ? UNSIGNED : INTEGER;
    if (is_signed && size < 8 && out->number >> (8 * size - 1))
        out->number |= ~(uint64_t)0 << 8 * size;
    return true;
}

/* Take an item that begins with a byte of 0xc0 .. 0xdf. */
static bool other(unpacker *from, uint8_t first, item *out)
{
    static const uint8_t widths[] = {1, 2, 4};
    uint64_t length;
    if (first >= 0xca && first <= 0xcb)
        return real_of(from, out, first == 0xca ? 4 : 8);
    if (first >= 0xcc && first <= 0xd3)
        return number_of(from, out, 1u << (first & 3), first >= 0xd0);
    if (first >= 0xd4 && first <= 0xd8)
        return bytes_of(from, out, EXTENSION, 1u << (first - 0xd4));
    if (first >= 0xd9 && first <= 0xdb)
        return take(from, widths[first - 0xd9], &length) && bytes_of(from, out, STRING, length);
    if (first >= 0xdc)
        return take(from, first & 1 ? 4 : 2, &length) &&
               values_of(from, out, first < 0xde ? ARRAY : MAP, length);
    if (first >= 0xc4 && first <= 0xc6)
        return take(from, widths[first - 0xc4], &length) && bytes_of(from, out, BINARY, length);
    if (first >= 0xc7 && first <= 0xc9)
        return take(from, widths[first - 0xc7], &length) && bytes_of(from, out, EXTENSION, length);
    out->kind = first == 0xc0 ? NIL : BOOLEAN;
    out->number = first == 0xc3;
    return first != 0xc1;
}

/* Take the next item; of an array or a map only its head.  False if the payload ends before. */
static inline bool next(unpacker *from, item *out)
{
    if (from->at == from->end)
        return false;
    uint8_t first = *from->at++;
    if (first < 0x80 || first >= 0xe0) {
        out->kind = INTEGER;
        out->number = (uint64_t)(int64_t)(int8_t)first;
        return true;
    }
    if (first >= 0xc0)
        return other(from, first, out);
    if (first >= 0xa0)
        return bytes_of(from, out, STRING, first & 31);
    return values_of(from, out, first < 0x90 ? MAP : ARRAY, first & 15);
}

/* Skip `items` items, with all nested ones. */
static bool skip(unpacker *from, uint64_t items)
{
    item ignored;
    for (; items > 0; items--) {
        if (!next(from, &ignored))
            return false;
        if (ignored.kind == ARRAY || ignored.kind == MAP)
            items += ignored.kind == MAP ? 2 * (uint64_t)ignored.length : ignored.length;
    }
    return true;
}

static void set_bit(uint8_t *bitmap, uint64_t row, bool on)
{
    uint8_t mask = (uint8_t)(1u << (row & 7));
    bitmap[row >> 3] = (uint8_t)(on ? bitmap[row >> 3] | mask : bitmap[row >> 3] & ~mask);
}

static uint16_t append(rb_unpack_field *field, const item *value)
{
    bool text = field->type == RB_STRING;
    if (value->kind != STRING && (text || value->kind != BINARY))
        return RB_UNPACK_TYPE;
    if (text && !rb_is_utf8(value->bytes, value->length))
        return RB_UNPACK_TEXT;
    if (value->length > field->capacity - field->filled)
        return RB_UNPACK_CUT;
    memcpy((uint8_t *)field->values + field->filled, value->bytes, value->length);
    field->filled += value->length;
    return RB_UNPACKED;
}

/* Store the value of a field in its column. */
static uint16_t put(rb_unpack_field *field, uint64_t row, const item *value)
{
    bool whole = value->kind == INTEGER, real = value->kind == FLOAT;
    switch (field->type) {
    case RB_LONG:
        if (!whole)
            return value->kind == UNSIGNED ? RB_UNPACK_RANGE : RB_UNPACK_TYPE;
        ((int64_t *)field->values)[row] = (int64_t)value->number;
        return RB_UNPACKED;
    case RB_DOUBLE:
        if (!whole && !real && value->kind != UNSIGNED)
            return RB_UNPACK_TYPE;
        ((double *)field->values)[row] =
            real ? value->real : whole ? (double)(int64_t)value->number : (double)value->number;
        return RB_UNPACKED;
    case RB_BOOLEAN:
        if (value->kind != BOOLEAN)
            return RB_UNPACK_TYPE;
        set_bit(field->values, row, value->number);
        return RB_UNPACKED;
    default:
        return append(field, value);
    }
}

static uint16_t read_value(unpacker *from, uint32_t field)
{
    item value;
    uint64_t bit = (uint64_t)1 << field;
    from->culprit = field;
    if (!next(from, &value))
        return RB_UNPACK_CUT;
    if (from->seen & bit)
        return RB_UNPACK_TWICE;
    from->seen |= bit;
    if (value.kind == NIL)
        return RB_UNPACKED;
    from->there |= bit;
    return put(&from->fields[field], from->row, &value);
}

/* The subset of the `wanted` fields that have this key at that depth. */
static inline uint64_t having(const unpacker *from, uint64_t wanted, uint32_t depth, const item *name)
{
    uint64_t matching = 0;
    for (; wanted != 0; wanted &= wanted - 1) {
        const key *one = &from->keys[__builtin_ctzll(wanted)][depth];
        if (one->length == name->length && memcmp(one->name, name->bytes, name->length) == 0)
            matching |= wanted & -wanted;
    }
    return matching;
}

/* Read a map that may have the `wanted` fields; recursion ends with their paths. */
static uint16_t read_map(unpacker *from, uint64_t wanted, uint32_t depth)
{
    item map, name;
    if (!next(from, &map))
        return RB_UNPACK_CUT;
    if (map.kind == NIL && depth > 0)
        return RB_UNPACKED;
    if (map.kind != MAP)
        return RB_UNPACK_NO_MAP;
    for (uint32_t left = map.length; left > 0; left--) {
        if (!next(from, &name))
            return RB_UNPACK_CUT;
        uint64_t inside = name.kind == ARRAY ? name.length : name.kind == MAP ? 2 * (uint64_t)name.length : 0;
        uint64_t matching = name.kind == STRING ? having(from, wanted, depth, &name) : 0;
        if (matching == 0) {
            if (!skip(from, inside + 1))
                return RB_UNPACK_CUT;
            continue;
        }
        uint32_t field = (uint32_t)__builtin_ctzll(matching);
        bool last = from->keys[field][depth].last;
        uint16_t outcome = last ? read_value(from, field) : read_map(from, matching, depth + 1);
        if (outcome != RB_UNPACKED)
            return outcome;
    }
    return RB_UNPACKED;
}

static uint16_t read_payload(unpacker *from, uint64_t all)
{
    bool bare = from->fields[0].path_length == 0;
    uint16_t outcome = bare ? read_value(from, 0) : read_map(from, all, 0);
    if (outcome == RB_UNPACKED && from->at != from->end)
        outcome = RB_UNPACK_REST;
    return outcome < RB_UNPACK_TYPE ? outcome : (uint16_t)(outcome | from->culprit << RB_UNPACK_BITS);
}

/* True if one path is the beginning of the other.  Keys carry their lengths, so comparing bytes is enough. */
static bool overlap(const rb_unpack_field *one, const rb_unpack_field *two)
{
    uint32_t common = one->path_length < two->path_length ? one->path_length : two->path_length;
    return common == 0 || memcmp(one->path, two->path, common) == 0;
}

/* Split the paths into keys.  False if they violate the rules of the header. */
static bool prepare(unpacker *from)
{
    for (uint32_t i = 0; i < from->count; i++) {
        const rb_unpack_field *field = &from->fields[i];
        uint32_t at = 0, depth = 0;
        for (uint32_t j = 0; j < i; j++)
            if (overlap(field, &from->fields[j]))
                return false;
        for (; at < field->path_length; depth++) {
            uint8_t length = field->path[at];
            if (depth == RB_UNPACK_DEPTH_MAX || length >= field->path_length - at)
                return false;
            at += 1u + length;
            from->keys[i][depth] = (key){field->path + at - length, length, at == field->path_length};
        }
    }
    return true;
}

static void begin_row(unpacker *from, uint64_t row)
{
    from->row = row;
    from->seen = from->there = 0;
    for (uint32_t i = 0; i < from->count; i++) {
        rb_unpack_field *field = &from->fields[i];
        if (field->type == RB_BOOLEAN)
            set_bit(field->values, row, false);
        else if (field->type < RB_BOOLEAN)
            ((uint64_t *)field->values)[row] = 0;
    }
}

static void end_row(unpacker *from, bool good)
{
    for (uint32_t i = 0; i < from->count; i++) {
        rb_unpack_field *field = &from->fields[i];
        set_bit(field->valid, from->row, good && from->there >> i & 1);
        if (field->ends == NULL)
            continue;
        if (!good)
            field->filled = (uint64_t)field->ends[from->row];
        field->ends[from->row + 1] = (int32_t)field->filled;
    }
}

int rb_unpack(const uint8_t *payloads, const int32_t *ends, uint64_t rows, rb_unpack_field *fields,
              uint32_t count, uint16_t *outcomes)
{
    unpacker from = {.fields = fields, .count = count};
    if (count == 0 || count > RB_UNPACK_FIELDS_MAX || !prepare(&from))
        return RB_CORRUPT;
    uint64_t all = count == 64 ? ~(uint64_t)0 : ((uint64_t)1 << count) - 1;
    for (uint32_t i = 0; i < count; i++) {
        fields[i].filled = 0;
        if (fields[i].ends != NULL)
            fields[i].ends[0] = 0;
    }
    for (uint64_t row = 0; row < rows; row++) {
        from.at = payloads + ends[row];
        from.end = payloads + ends[row + 1];
        begin_row(&from, row);
        outcomes[row] = read_payload(&from, all);
        end_row(&from, outcomes[row] == RB_UNPACKED);
    }
    return RB_OK;
}
