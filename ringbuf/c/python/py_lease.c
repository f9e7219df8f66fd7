/* SPDX-License-Identifier: Apache-2.0
 *
 * Leases of a blocking reader: they hold the records that it has returned.
 *
 * Each polled Record and each Batch takes a lease, which ends when the object dies or is released.  The
 * slot's cursor is the end of the last lease up to which all leases are done.  Records may therefore be
 * released in any order.
 */
#include "python/py_ring.h"

#define LEASES_FIRST 64

static lease *lease_at(reader_object *self, uint64_t number)
{
    return &self->leases[number & (self->lease_capacity - 1)];
}

int leases_grow(reader_object *self)
{
    uint64_t capacity = self->lease_capacity ? self->lease_capacity * 2 : LEASES_FIRST;
    lease *bigger = PyMem_Malloc(capacity * sizeof(lease));
    if (bigger == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint64_t i = self->lease_first; i < self->lease_next; i++)
        bigger[i & (capacity - 1)] = *lease_at(self, i);
    PyMem_Free(self->leases);
    self->leases = bigger;
    self->lease_capacity = capacity;
    return 0;
}

/* Take a lease up to the cursor.  leases_grow() made its place, and no other call has read since. */
uint64_t lease_take(reader_object *self)
{
    if (!self->reader.blocks_writer) {
        rb_reader_store_progress_lazily(&self->reader, self->reader.cursor);
        return NO_LEASE;
    }
    *lease_at(self, self->lease_next) = (lease){.end = self->reader.cursor};
    return self->lease_next++;
}

void lease_end(reader_object *self, uint64_t number)
{
    if (number == NO_LEASE || number < self->lease_first)
        return;
    lease_at(self, number)->done = true;
    uint64_t released = self->reader.released;
    while (self->lease_first < self->lease_next && lease_at(self, self->lease_first)->done)
        released = lease_at(self, self->lease_first++)->end;
    if (released > self->reader.released && self->open && self->forks == forks)
        rb_reader_store_progress_lazily(&self->reader, released);
}

/* Store the released position in the slot before the reader becomes idle; skipped records count as
 * released. */
void reader_settle(reader_object *self)
{
    uint64_t released = self->lease_first == self->lease_next ? self->reader.cursor : self->reader.released;
    if (released != self->reader.stored_released)
        rb_reader_store_progress(&self->reader, released);
}
