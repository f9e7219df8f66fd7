/* SPDX-License-Identifier: Apache-2.0
 *
 * Guards of mapped files that another user may shorten.  An access beyond the new end would end this process
 * (SIGBUS), and named files cannot be sealed against this.
 *
 * A guard defines the replacement of its memory.  With a descriptor, the file gets its length back, up to
 * RESTORES_MAX times: zeros, and the patch in its header.  Otherwise private zeros with the patch replace the
 * whole mapping for good; the memory is then not shared with other processes.
 *
 * The handler only makes system calls (mmap, fallocate, pwrite), accesses no memory that may be missing, and
 * takes no lock.  A fault elsewhere or of another kind (hardware, kill) is passed to the previous handler.
 *
 * Invariant: a guard is removed before its memory is unmapped; its descriptor is closed after that.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ring/ring.h"

#define RESTORES_MAX 64  /* per guard: then the memory becomes private */
#define PAGE_BYTES 4096u /* smallest page size; a mapping ends at a page boundary */

enum { WHOLE = 0, REPLACING = 1, LOST = 2 };

typedef struct guard {
    _Atomic uintptr_t begin; /* 0: free; stored last */
    uint64_t bytes;
    _Atomic int descriptor; /* -1: the file is not restored */
    _Atomic uint32_t state, restored;
    uint64_t patch_at;
    uint32_t patch_bytes;
    uint8_t patch[RB_GUARD_PATCH_BYTES];
} guard;

static guard guards[RB_GUARDS];
static _Atomic int used; /* number of guards ever used: limit of the handler's search */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before;
static _Atomic bool passing_on;

static bool restore(guard *entry)
{
    int descriptor = atomic_load_explicit(&entry->descriptor,
                                          memory_order_acquire); /* see rb_guard_patch() */
    return descriptor >= 0 &&
           atomic_fetch_add_explicit(&entry->restored, 1, memory_order_relaxed) < RESTORES_MAX &&
           fallocate(descriptor, 0, 0, (off_t)entry->bytes) == 0 && /* never shortens */
           pwrite(descriptor, entry->patch, entry->patch_bytes, (off_t)entry->patch_at) ==
               (ssize_t)entry->patch_bytes;
}

/* Another thread that faults meanwhile returns, and faults again until the replacement is done. */
static bool replace(guard *entry, void *begin)
{
    uint32_t whole = WHOLE;
    if (!atomic_compare_exchange_strong(&entry->state, &whole, REPLACING))
        return true;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
    if (mmap(begin, entry->bytes, PROT_READ | PROT_WRITE, flags, -1, 0) != begin)
        return false;
    memcpy((uint8_t *)begin + entry->patch_at, entry->patch, entry->patch_bytes);
    atomic_store(&entry->state, LOST);
    return true;
}

static guard *guard_of(uintptr_t address)
{
    int count = atomic_load_explicit(&used, memory_order_acquire);
    for (int i = 0; i < count; i++) {
        /* pairs with the release in rb_guard() */
        uintptr_t begin = atomic_load_explicit(&guards[i].begin, memory_order_acquire);
        uintptr_t end = (begin + guards[i].bytes + PAGE_BYTES - 1) & ~(uintptr_t)(PAGE_BYTES - 1);
        if (begin != 0 && address >= begin && address < end)
            return &guards[i];
    }
    return NULL;
}

/* Call the previous handler.  If that one calls this handler again, the default action ends the process. */
static void pass_on(int number, siginfo_t *info, void *context)
{
    bool takes_info = before.sa_flags & SA_SIGINFO;
    bool handles = takes_info || (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN);
    if (!handles || atomic_exchange(&passing_on, true)) {
        signal(number, SIG_DFL); /* the fault happens again */
        if (info->si_code <= 0)  /* not a fault but kill(2) */
            raise(number);
        return;
    }
    if (takes_info)
        before.sa_sigaction(number, info, context);
    else
        before.sa_handler(number);
    atomic_store(&passing_on, false);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    int saved = errno;
    guard *entry = info->si_code == BUS_ADRERR ? guard_of((uintptr_t)info->si_addr) : NULL;
    if (entry == NULL || !(restore(entry) ||
                           replace(entry, (void *)atomic_load_explicit(&entry->begin, memory_order_relaxed))))
        pass_on(number, info, context);
    errno = saved;
}

/* Install the handler, again if another one was installed since; that one is then the previous handler. */
static int install(void)
{
    struct sigaction now, ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    if (sigaction(SIGBUS, NULL, &now) != 0)
        return RB_INVALID;
    if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_fault)
        return RB_OK;
    before = now;
    return sigaction(SIGBUS, &ours, NULL) == 0 ? RB_OK : RB_INVALID;
}

int rb_guard(void *begin, uint64_t bytes)
{
    int number = RB_FULL;
    pthread_mutex_lock(&changing);
    for (int i = 0; i < RB_GUARDS && number == RB_FULL; i++)
        if (atomic_load_explicit(&guards[i].begin, memory_order_relaxed) == 0)
            number = i;
    if (number >= 0 && install() != RB_OK)
        number = RB_INVALID;
    if (number >= 0) {
        guard *entry = &guards[number];
        entry->bytes = bytes;
        entry->patch_bytes = 0;
        entry->patch_at = 0;
        atomic_store(&entry->descriptor, -1);
        atomic_store(&entry->state, WHOLE);
        atomic_store(&entry->restored, 0);
        /* pairs with the acquire in guard_of() */
        atomic_store_explicit(&entry->begin, (uintptr_t)begin, memory_order_release);
        if (number >= atomic_load(&used))
            atomic_store_explicit(&used, number + 1, memory_order_release);
    }
    pthread_mutex_unlock(&changing);
    return number;
}

int rb_guard_patch(int number, int descriptor, uint64_t at, const void *patch, uint32_t bytes)
{
    if (number < 0 || number >= RB_GUARDS || bytes > RB_GUARD_PATCH_BYTES ||
        at + bytes > guards[number].bytes)
        return RB_INVALID;
    guard *entry = &guards[number];
    memcpy(entry->patch, patch, bytes);
    entry->patch_at = at;
    entry->patch_bytes = bytes;
    /* pairs with the acquire in restore() */
    atomic_store_explicit(&entry->descriptor, descriptor, memory_order_release);
    return RB_OK;
}

void rb_guard_restore(int number)
{
    if (number >= 0 && number < RB_GUARDS)
        restore(&guards[number]);
}

void rb_unguard(int number)
{
    if (number < 0 || number >= RB_GUARDS)
        return;
    pthread_mutex_lock(&changing);
    /* pairs with the acquire in guard_of() */
    atomic_store_explicit(&guards[number].begin, 0, memory_order_release);
    pthread_mutex_unlock(&changing);
}

uint32_t rb_guard_faults(int number)
{
    if (number < 0 || number >= RB_GUARDS)
        return 0;
    uint32_t restored = atomic_load(&guards[number].restored);
    return (restored < RESTORES_MAX ? restored : RESTORES_MAX) + (uint32_t)rb_guard_lost(number);
}

int rb_guard_lost(int number)
{
    return number >= 0 && number < RB_GUARDS && atomic_load(&guards[number].state) != WHOLE;
}
