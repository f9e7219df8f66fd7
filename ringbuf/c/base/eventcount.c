/* SPDX-License-Identifier: Apache-2.0
 *
 * Eventcount: see eventcount.h.  The system calls of a wait and of a wake-up (futex, Linux).
 */
#include "base/eventcount.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/record.h"

#define RECHECK_NS 1000000000ll /* longest wait: the delay if another process destroys the words */

int rb_wait(const _Atomic uint32_t *epoch, uint32_t seen, int64_t ns)
{
    int64_t limited = ns < RECHECK_NS ? ns : RECHECK_NS;
    struct timespec time = {.tv_sec = limited / 1000000000ll, .tv_nsec = limited % 1000000000ll};
    long result = syscall(SYS_futex, epoch, FUTEX_WAIT, seen, &time, NULL, 0);
    return result != 0 && errno == EINTR ? RB_INTERRUPTED : RB_OK;
}

void rb_wake(_Atomic uint32_t *epoch)
{
    /* pairs with the acquire in rb_prepare(); in the order of rb_notify(): after the bits are cleared */
    atomic_fetch_add_explicit(epoch, 1, memory_order_seq_cst);
    syscall(SYS_futex, epoch, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}
