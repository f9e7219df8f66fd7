/* SPDX-License-Identifier: Apache-2.0
 *
 * The gate's loop: sockets, clock and limits.  One thread, except gt_stop(), gt_admit(), gt_drained() and
 * gt_counts_of().
 *
 * A link is a peer's socket and a connection to libzmq.  Bytes in both directions pass through one buffer of
 * the gate.  A link has memory only for bytes that the destination did not accept, and its source is not read
 * meanwhile.  Peer and libzmq therefore wait for each other as on one connection.
 *
 * The limits are those of gt_limits.  If the total of unfinished messages is too large, the link with the
 * oldest one is closed: an honest message ends soon.
 */
#include "gate/gate.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define BUFFER_BYTES (128u * 1024)
#define READS_MAX 4 /* reads of one link in its turn */
#define EVENTS_MAX 64
#define SWEEP_MS 250
#define LISTENER UINT64_MAX
#define WAKE (UINT64_MAX - 1)

enum {
    PEER,
    INNER,
    SIDES
}; /* the sides of a link */

typedef struct gt_link {
    int fds[SIDES];           /* fds[PEER] -1: free */
    uint32_t interest[SIDES]; /* events registered with epoll; 0: not registered */
    uint8_t *rest[SIDES];     /* bytes for that side that it did not accept; NULL: none */
    uint32_t at[SIDES], end[SIDES];
    bool ended[SIDES]; /* that side sends no more bytes */
    gt_frames frames;  /* of the peer */
    uint64_t began_ms; /* begin of the unfinished message */
    uint64_t stuck_ms; /* begin of the time without reads by the peer */
    uint32_t next_free;
} gt_link;

typedef struct counts {
    _Atomic uint32_t open;
    _Atomic uint64_t accepted, refused, malformed, too_long, unfinished, unread;
} counts;

struct gt_gate {
    gt_limits limits;
    struct sockaddr_un inner;
    socklen_t inner_length;
    int listener, epoll, wake;
    bool listening; /* the listener is registered */
    gt_link *links;
    uint32_t used, first_free; /* number of links ever used; list of free links */
    uint64_t unfinished;       /* bytes of all unfinished messages */
    uint64_t undrained;        /* bytes of finished messages since gt_drained() */
    uint32_t drained_seen;
    uint64_t sweep_ms;
    counts counts;
    _Atomic uint32_t drained; /* calls of gt_drained() */
    _Atomic bool paused;      /* peers are not read */
    _Atomic bool stopping;
    _Atomic uint32_t linger_ms;
    _Atomic uint32_t connections_max; /* at most the value in `limits`, which is the room for links */
    uint8_t buffer[BUFFER_BYTES];
};

/* ---- links ---- */

static void look_for(gt_gate *gate, gt_link *link, int side, uint32_t interest)
{
    if (link->interest[side] == interest)
        return;
    struct epoll_event event = {.events = interest,
                                .data.u64 = (uint64_t)(link - gate->links) << 1 | (unsigned)side};
    int what = interest == 0 ? EPOLL_CTL_DEL : link->interest[side] == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (epoll_ctl(gate->epoll, what, link->fds[side], &event) == 0)
        link->interest[side] = interest;
    else
        link->ended[PEER] = link->ended[INNER] = true; /* no memory: settle() closes it */
}

static void link_end(gt_gate *gate, gt_link *link)
{
    gate->unfinished -= link->frames.message;
    for (int side = 0; side < SIDES; side++) {
        if (link->fds[side] >= 0)
            close(link->fds[side]);
        free(link->rest[side]);
    }
    *link = (gt_link){.fds = {-1, -1}, .next_free = gate->first_free};
    gate->first_free = (uint32_t)(link - gate->links);
    atomic_fetch_sub_explicit(&gate->counts.open, 1, memory_order_relaxed);
}

static void link_refuse(gt_gate *gate, gt_link *link, _Atomic uint64_t *count)
{
    atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
    link_end(gate, link);
}

/* Register the events of both sides; close the link if no event is possible. */
static void settle(gt_gate *gate, gt_link *link)
{
    bool paused = atomic_load_explicit(&gate->paused, memory_order_relaxed);
    for (int side = 0; side < SIDES; side++) {
        bool reads = !link->ended[side] && !link->rest[!side] && !(side == PEER && paused);
        look_for(gate, link, side, (reads ? EPOLLIN : 0) | (link->rest[side] ? EPOLLOUT : 0));
    }
    bool over = link->ended[PEER] && link->ended[INNER];
    if (over || (link->ended[PEER] && !link->rest[INNER]) || (link->ended[INNER] && !link->rest[PEER]))
        link_end(gate, link);
}

/* ---- bytes ---- */

/* Send bytes to a side.  Returns the number accepted; 0 if its buffer is full. */
static size_t give(gt_link *link, int side, const uint8_t *bytes, size_t length)
{
    ssize_t sent = send(link->fds[side], bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        link->ended[PEER] = link->ended[INNER] = true;
        return length; /* the bytes are discarded */
    }
    return sent < 0 ? 0 : (size_t)sent;
}

static void pass_on(gt_link *link, int side, const uint8_t *bytes, size_t length, uint64_t now)
{
    size_t taken = give(link, side, bytes, length);
    if (taken == length)
        return;
    link->rest[side] = malloc(length - taken);
    if (!link->rest[side]) {
        link->ended[PEER] = link->ended[INNER] = true;
        return;
    }
    memcpy(link->rest[side], bytes + taken, length - taken);
    link->at[side] = 0;
    link->end[side] = (uint32_t)(length - taken);
    if (side == PEER)
        link->stuck_ms = now;
}

static void pass_rest_on(gt_link *link, int side, uint64_t now)
{
    uint32_t length = link->end[side] - link->at[side];
    size_t taken = give(link, side, link->rest[side] + link->at[side], length);
    link->at[side] += (uint32_t)taken;
    if (taken && side == PEER)
        link->stuck_ms = now;
    if (taken == length) {
        free(link->rest[side]);
        link->rest[side] = NULL;
    }
}

static void end_oldest(gt_gate *gate)
{
    gt_link *oldest = NULL;
    for (uint32_t i = 0; i < gate->used; i++) {
        gt_link *link = &gate->links[i];
        if (link->fds[PEER] >= 0 && link->frames.message && (!oldest || link->began_ms < oldest->began_ms))
            oldest = link;
    }
    if (oldest)
        link_refuse(gate, oldest, &gate->counts.unfinished);
}

/* Count the bytes received from a peer.  False: a limit is exceeded, and the link is closed. */
static bool may_pass(gt_gate *gate, gt_link *link, size_t length, uint64_t now)
{
    uint64_t before = link->frames.message;
    gt_decision found = gt_frames_read(&link->frames, gate->buffer, length, &gate->limits);
    gate->unfinished += link->frames.message - before;
    if (found != GT_FINE) {
        link_refuse(gate, link, found == GT_TOO_LONG ? &gate->counts.too_long : &gate->counts.malformed);
        return false;
    }
    if (link->frames.whole || !before)
        link->began_ms = now;
    gate->undrained += link->frames.whole;
    link->frames.whole = 0;
    while (gate->unfinished > gate->limits.unfinished_max_bytes && link->fds[PEER] >= 0)
        end_oldest(gate);
    return link->fds[PEER] >= 0;
}

/* Read from one side and pass the bytes on.  False: the link is closed. */
static bool take(gt_gate *gate, gt_link *link, int side, uint64_t now)
{
    for (int i = 0; i < READS_MAX && !link->ended[side] && !link->rest[!side]; i++) {
        ssize_t got = recv(link->fds[side], gate->buffer, BUFFER_BYTES, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (got <= 0) {
            link->ended[side] = true;
            break;
        }
        if (side == PEER && !may_pass(gate, link, (size_t)got, now))
            return false;
        pass_on(link, !side, gate->buffer, (size_t)got, now);
        if ((size_t)got < BUFFER_BYTES)
            break;
    }
    return true;
}

static void on_link(gt_gate *gate, uint64_t data, uint32_t events, uint64_t now)
{
    gt_link *link = &gate->links[data >> 1];
    int side = (int)(data & 1);
    if (!(link->interest[side] & (EPOLLIN | EPOLLOUT)))
        return; /* the link was closed in this round */
    if (link->rest[side] && events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
        pass_rest_on(link, side, now);
    if (link->interest[side] & EPOLLIN && events & (EPOLLIN | EPOLLERR | EPOLLHUP) &&
        !take(gate, link, side, now))
        return;
    settle(gate, link);
}

/* ---- connections ---- */

static int connect_inner(const gt_gate *gate)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int spare = fd < 0
                    ? -1
                    /* libzmq ends the process if accept() gets no descriptor */
                    : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (spare >= 0)
        close(spare);
    if (spare >= 0 && connect(fd, (const struct sockaddr *)&gate->inner, gate->inner_length) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static void link_begin(gt_gate *gate, int fd)
{
    uint32_t open = atomic_load_explicit(&gate->counts.open, memory_order_relaxed);
    int inner = open < atomic_load_explicit(&gate->connections_max, memory_order_relaxed)
                    ? connect_inner(gate)
                    : -1;
    if (inner < 0) {
        atomic_fetch_add_explicit(&gate->counts.refused, 1, memory_order_relaxed);
        close(fd);
        return;
    }
    uint32_t index = gate->first_free;
    if (index == UINT32_MAX)
        index = gate->used++;
    else
        gate->first_free = gate->links[index].next_free;
    gt_link *link = &gate->links[index];
    *link = (gt_link){.fds = {fd, inner}};
    atomic_fetch_add_explicit(&gate->counts.open, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&gate->counts.accepted, 1, memory_order_relaxed);
    settle(gate, link);
}

static void set_listening(gt_gate *gate, bool listening)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = LISTENER};
    if (listening != gate->listening &&
        epoll_ctl(gate->epoll, listening ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, gate->listener, &event) == 0)
        gate->listening = listening;
}

static void accept_all(gt_gate *gate)
{
    for (int i = 0; i < EVENTS_MAX; i++) {
        int fd = accept4(gate->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            link_begin(gate, fd);
        else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            atomic_fetch_add_explicit(&gate->counts.refused, 1, memory_order_relaxed);
            set_listening(gate, false); /* until the next sweep */
            return;
        } else if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

/* ---- the loop ---- */

static void sweep(gt_gate *gate, uint64_t now)
{
    const gt_limits *limits = &gate->limits;
    gate->sweep_ms = now;
    for (uint32_t i = 0; i < gate->used; i++) {
        gt_link *link = &gate->links[i];
        if (link->fds[PEER] < 0)
            continue;
        /* The time limit of messages stands still while peers are paused. */
        if (atomic_load_explicit(&gate->paused, memory_order_relaxed) || link->rest[INNER])
            link->began_ms = now;
        if (link->frames.message && now - link->began_ms > limits->unfinished_max_ms)
            link_refuse(gate, link, &gate->counts.unfinished);
        else if (link->rest[PEER] && limits->unread_max_ms && now - link->stuck_ms > limits->unread_max_ms)
            link_refuse(gate, link, &gate->counts.unread);
    }
    set_listening(gate, !atomic_load_explicit(&gate->stopping, memory_order_relaxed));
}

/* Pause or resume the peers according to the messages that libzmq's socket has not returned yet. */
static void pace(gt_gate *gate)
{
    bool before = atomic_load_explicit(&gate->paused, memory_order_relaxed);
    bool paused = gate->undrained > gate->limits.undrained_max_bytes;
    if (paused)
        atomic_store(&gate->paused,
                     true); /* before `drained` is read; gt_drained() uses the opposite order */
    uint32_t drained = atomic_load(&gate->drained);
    if (drained != gate->drained_seen) {
        gate->drained_seen = drained;
        gate->undrained = 0;
        paused = false;
    }
    atomic_store(&gate->paused, paused);
    for (uint32_t i = 0; paused != before && i < gate->used; i++)
        if (gate->links[i].fds[PEER] >= 0)
            settle(gate, &gate->links[i]);
}

static int timeout_ms(const gt_gate *gate, uint64_t end_ms, uint64_t now)
{
    if (end_ms != UINT64_MAX)
        return end_ms - now < 10 ? (int)(end_ms - now) : 10;
    bool idle = atomic_load_explicit(&gate->counts.open, memory_order_relaxed) == 0 && gate->listening;
    return idle ? -1 : SWEEP_MS;
}

static void on_event(gt_gate *gate, const struct epoll_event *event, uint64_t now)
{
    uint64_t ignored;
    if (event->data.u64 == LISTENER)
        accept_all(gate);
    else if (event->data.u64 != WAKE)
        on_link(gate, event->data.u64, event->events, now);
    else if (read(gate->wake, &ignored, sizeof ignored) < 0)
        return; /* another event of this round has already read it */
}

int gt_run(gt_gate *gate)
{
    struct epoll_event events[EVENTS_MAX];
    uint64_t end_ms = UINT64_MAX, now = rb_now_ms();
    for (;;) {
        if (end_ms == UINT64_MAX && atomic_load(&gate->stopping)) {
            end_ms = now + atomic_load(&gate->linger_ms);
            set_listening(gate, false);
        }
        if (now >= end_ms || (end_ms != UINT64_MAX && atomic_load(&gate->counts.open) == 0))
            return 0;
        int count = epoll_wait(gate->epoll, events, EVENTS_MAX, timeout_ms(gate, end_ms, now));
        if (count < 0 && errno != EINTR)
            return errno;
        now = rb_now_ms();
        for (int i = 0; i < count; i++)
            on_event(gate, &events[i], now);
        pace(gate);
        if (now - gate->sweep_ms >= SWEEP_MS)
            sweep(gate, now);
    }
}

static void wake_up(gt_gate *gate)
{
    uint64_t one = 1;
    while (write(gate->wake, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

void gt_stop(gt_gate *gate, uint32_t linger_ms)
{
    atomic_store(&gate->linger_ms, linger_ms);
    atomic_store(&gate->stopping, true);
    wake_up(gate);
}

void gt_admit(gt_gate *gate, uint32_t connections_max)
{
    uint32_t most = gate->limits.connections_max;
    atomic_store(&gate->connections_max, connections_max < most ? connections_max : most);
}

void gt_drained(gt_gate *gate)
{
    atomic_fetch_add(&gate->drained, 1);
    if (atomic_load(&gate->paused))
        wake_up(gate);
}

void gt_counts_of(const gt_gate *gate, gt_counts *found)
{
    const counts *it = &gate->counts;
    *found = (gt_counts){
        .open = atomic_load_explicit(&it->open, memory_order_relaxed),
        .accepted = atomic_load_explicit(&it->accepted, memory_order_relaxed),
        .refused = atomic_load_explicit(&it->refused, memory_order_relaxed),
        .malformed = atomic_load_explicit(&it->malformed, memory_order_relaxed),
        .too_long = atomic_load_explicit(&it->too_long, memory_order_relaxed),
        .unfinished = atomic_load_explicit(&it->unfinished, memory_order_relaxed),
        .unread = atomic_load_explicit(&it->unread, memory_order_relaxed),
    };
}

gt_gate *gt_open(int listener, const char *inner, uint32_t length, const gt_limits *limits)
{
    gt_gate *gate = calloc(1, sizeof *gate);
    if (!gate || length >= sizeof gate->inner.sun_path) {
        free(gate);
        errno = gate ? EINVAL : ENOMEM;
        return NULL;
    }
    gate->limits = *limits;
    gate->listener = listener;
    gt_admit(gate, limits->connections_max);
    gate->first_free = UINT32_MAX;
    gate->inner.sun_family = AF_UNIX;
    memcpy(gate->inner.sun_path + 1, inner, length);
    gate->inner_length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    gate->links = calloc(limits->connections_max, sizeof *gate->links);
    gate->epoll = epoll_create1(EPOLL_CLOEXEC);
    gate->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = WAKE};
    if (!gate->links || gate->epoll < 0 || gate->wake < 0 ||
        epoll_ctl(gate->epoll, EPOLL_CTL_ADD, gate->wake, &event) < 0) {
        int why = errno;
        gt_close(gate);
        errno = why;
        return NULL;
    }
    set_listening(gate, true);
    return gate;
}

void gt_close(gt_gate *gate)
{
    for (uint32_t i = 0; gate->links && i < gate->used; i++)
        if (gate->links[i].fds[PEER] >= 0)
            link_end(gate, &gate->links[i]);
    if (gate->epoll >= 0)
        close(gate->epoll);
    if (gate->wake >= 0)
        close(gate->wake);
    free(gate->links);
    free(gate);
}
