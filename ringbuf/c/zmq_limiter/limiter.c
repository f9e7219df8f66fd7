/* SPDX-License-Identifier: Apache-2.0
 *
 * The limiter's loop: sockets, clock and limits.  One thread, except zl_stop(), zl_set_connections_max(),
 * zl_drained() and zl_read_counts().
 *
 * A link is a peer's socket and a connection to libzmq.  Bytes in both directions pass through one buffer of
 * the limiter.  A link has memory only for bytes that the destination did not accept.  Meanwhile the other
 * side is not read.  Peer and libzmq therefore wait for each other as on one connection.
 *
 * The limits are those of zl_limits.  If the total of unfinished messages is too large, the link with the
 * oldest one is closed: an honest message ends soon.  If the total of received bytes is too large, the owner
 * with most of them loses the link with most: libzmq keeps subscriptions in some 45 bytes of memory for each
 * byte.
 *
 * No peer excludes the others from the places for links.  An owner is a user of this machine, or an address;
 * all of loopback is one, and a network of IPv6.  An owner, except root and the limiter's user, gets a
 * further place while it then has at most SHARE times the free ones.  If a place is missing, the oldest
 * silent link is closed for the new one: of the same owner if that has its share, otherwise of any.  A link
 * is silent until its handshake is done and its peer has requested something, which honest peers do at once.
 */
#include "zmq_limiter/limiter.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
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
#define CHECK_MS 250
#define LISTENER UINT64_MAX
#define WAKE (UINT64_MAX - 1)
#define SHARE 3
#define SPOKEN_FRAMES 2 /* READY, and a subscription or a request */

enum {
    PEER,
    INNER,
    SIDES
}; /* the sides of a link */

typedef struct zl_link {
    int fds[SIDES];           /* fds[PEER] -1: free */
    uint32_t interest[SIDES]; /* events registered with epoll; 0: not registered */
    uint8_t *rest[SIDES];     /* bytes for that side that it did not accept; NULL: none */
    uint32_t at[SIDES], end[SIDES];
    bool ended[SIDES]; /* that side sends no more bytes */
    zl_frames frames;  /* of the peer */
    zl_ready ready;    /* of the peer */
    uint64_t owner;
    uint64_t number;   /* in the order of accept() */
    uint64_t received; /* bytes of the peer, without heartbeats */
    uint64_t began_ms; /* begin of the unfinished message */
    uint64_t stuck_ms; /* begin of the time without reads by the peer */
    uint32_t next_free;
} zl_link;

typedef struct counts {
    _Atomic uint32_t open;
    _Atomic uint64_t accepted, refused, malformed, too_long, unfinished, unread, too_many_bytes;
} counts;

struct zl_limiter {
    zl_limits limits;
    struct sockaddr_un inner;
    socklen_t inner_length;
    int listener, epoll, wake;
    bool listening; /* the listener is registered */
    zl_link *links;
    uint32_t used, first_free; /* number of links ever used; list of free links */
    uint64_t unfinished;       /* bytes of all unfinished messages */
    uint64_t undrained;        /* bytes of finished messages since zl_drained() */
    uint64_t received;         /* bytes of all open links */
    uint32_t drained_seen;
    uint64_t checked_ms;
    counts counts;
    _Atomic uint32_t drained; /* calls of zl_drained() */
    _Atomic bool paused;      /* peers are not read */
    _Atomic bool stopping;
    _Atomic uint32_t linger_ms;
    _Atomic uint32_t connections_max; /* at most the value in `limits`, which is the room for links */
    uint8_t buffer[BUFFER_BYTES];
};

/* ---- links ---- */

static void set_interest(zl_limiter *limiter, zl_link *link, int side, uint32_t interest)
{
    if (link->interest[side] == interest)
        return;
    struct epoll_event event = {.events = interest,
                                .data.u64 = (uint64_t)(link - limiter->links) << 1 | (unsigned)side};
    int what = interest == 0 ? EPOLL_CTL_DEL : link->interest[side] == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (epoll_ctl(limiter->epoll, what, link->fds[side], &event) == 0)
        link->interest[side] = interest;
    else
        link->ended[PEER] = link->ended[INNER] = true; /* no memory: update_link() closes it */
}

static void link_end(zl_limiter *limiter, zl_link *link)
{
    limiter->unfinished -= link->frames.message;
    limiter->received -= link->received;
    for (int side = 0; side < SIDES; side++) {
        if (link->fds[side] >= 0)
            close(link->fds[side]);
        free(link->rest[side]);
    }
    *link = (zl_link){.fds = {-1, -1}, .next_free = limiter->first_free};
    limiter->first_free = (uint32_t)(link - limiter->links);
    atomic_fetch_sub_explicit(&limiter->counts.open, 1, memory_order_relaxed);
}

static void link_refuse(zl_limiter *limiter, zl_link *link, _Atomic uint64_t *count)
{
    atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
    link_end(limiter, link);
}

/* Register the events of both sides; close the link if no event is possible. */
static void update_link(zl_limiter *limiter, zl_link *link)
{
    bool paused = atomic_load_explicit(&limiter->paused, memory_order_relaxed);
    for (int side = 0; side < SIDES; side++) {
        bool reads = !link->ended[side] && !link->rest[!side] && !(side == PEER && paused);
        set_interest(limiter, link, side, (reads ? EPOLLIN : 0) | (link->rest[side] ? EPOLLOUT : 0));
    }
    bool over = link->ended[PEER] && link->ended[INNER];
    if (over || (link->ended[PEER] && !link->rest[INNER]) || (link->ended[INNER] && !link->rest[PEER]))
        link_end(limiter, link);
}

/* ---- bytes ---- */

/* Send bytes to a side.  Returns the number accepted; 0 if its buffer is full. */
static size_t send_some(zl_link *link, int side, const uint8_t *bytes, size_t length)
{
    ssize_t sent = send(link->fds[side], bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        link->ended[PEER] = link->ended[INNER] = true;
        return length; /* the bytes are discarded */
    }
    return sent < 0 ? 0 : (size_t)sent;
}

static void pass_on(zl_link *link, int side, const uint8_t *bytes, size_t length, uint64_t now)
{
    size_t taken = send_some(link, side, bytes, length);
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

static void pass_rest_on(zl_link *link, int side, uint64_t now)
{
    uint32_t length = link->end[side] - link->at[side];
    size_t taken = send_some(link, side, link->rest[side] + link->at[side], length);
    link->at[side] += (uint32_t)taken;
    if (taken && side == PEER)
        link->stuck_ms = now;
    if (taken == length) {
        free(link->rest[side]);
        link->rest[side] = NULL;
    }
}

static void end_oldest(zl_limiter *limiter)
{
    zl_link *oldest = NULL;
    for (uint32_t i = 0; i < limiter->used; i++) {
        zl_link *link = &limiter->links[i];
        if (link->fds[PEER] >= 0 && link->frames.message && (!oldest || link->began_ms < oldest->began_ms))
            oldest = link;
    }
    if (oldest)
        link_refuse(limiter, oldest, &limiter->counts.unfinished);
}

/* Number of links of an owner, and, if `bytes` is not NULL, the bytes that they have received. */
static uint32_t links_of(const zl_limiter *limiter, uint64_t owner, uint64_t *bytes)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < limiter->used; i++) {
        const zl_link *link = &limiter->links[i];
        if (link->fds[PEER] < 0 || link->owner != owner)
            continue;
        count++;
        if (bytes)
            *bytes += link->received;
    }
    return count;
}

static void end_largest(zl_limiter *limiter)
{
    zl_link *largest = NULL;
    uint64_t most = 0;
    for (uint32_t i = 0; i < limiter->used; i++) {
        zl_link *link = &limiter->links[i];
        if (link->fds[PEER] < 0)
            continue;
        uint64_t bytes = 0;
        links_of(limiter, link->owner, &bytes);
        if (!largest || bytes > most || (bytes == most && link->received > largest->received)) {
            largest = link;
            most = bytes;
        }
    }
    if (largest)
        link_refuse(limiter, largest, &limiter->counts.too_many_bytes);
}

/* Count the bytes received from a peer.  False: a limit is exceeded, and the link is closed. */
static bool check_message(zl_limiter *limiter, zl_link *link, size_t length, uint64_t now)
{
    uint64_t before = link->frames.message;
    zl_verdict verdict = zl_frames_read(&link->frames, limiter->buffer, length, &limiter->limits);
    limiter->unfinished += link->frames.message - before;
    if (verdict != ZL_FINE) {
        link_refuse(limiter, link,
                    verdict == ZL_TOO_LONG ? &limiter->counts.too_long : &limiter->counts.malformed);
        return false;
    }
    if (link->frames.whole || !before)
        link->began_ms = now;
    link->received += link->frames.content;
    limiter->received += link->frames.content;
    limiter->undrained += link->frames.whole;
    link->frames.whole = link->frames.content = 0;
    while (limiter->unfinished > limiter->limits.unfinished_max_bytes && link->fds[PEER] >= 0)
        end_oldest(limiter);
    while (limiter->limits.received_max_bytes && limiter->received > limiter->limits.received_max_bytes)
        end_largest(limiter);
    return link->fds[PEER] >= 0;
}

/* True if no share holds for the owner: root, and the limiter's user. */
static bool is_privileged(uint64_t owner)
{
    return owner == 0 || owner == geteuid();
}

/* Number of bytes to read from a side at once: READY begins with a read of its own. */
static size_t bytes_wanted(const zl_link *link, int side)
{
    if (side != PEER || link->ready.passed)
        return BUFFER_BYTES;
    size_t greeting = ZL_GREETING_BYTES - (size_t)link->frames.position;
    return greeting ? greeting : zl_ready_missing(&link->ready);
}

/* Read from one side and pass the bytes on.  False: the link is closed. */
static bool take(zl_limiter *limiter, zl_link *link, int side, uint64_t now)
{
    for (int i = 0; i < READS_MAX && !link->ended[side] && !link->rest[!side]; i++) {
        size_t wanted = bytes_wanted(link, side);
        bool is_ready = side == PEER && !link->ready.passed && link->frames.position == ZL_GREETING_BYTES;
        ssize_t got = recv(link->fds[side], limiter->buffer, wanted, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (got <= 0) {
            link->ended[side] = true;
            break;
        }
        if (side == PEER && !check_message(limiter, link, (size_t)got, now))
            return false;
        size_t length = (size_t)got;
        if (is_ready) {
            char owner[ZL_OWNER_MAX_BYTES] = "";
            if (!is_privileged(link->owner))
                zl_owner_name(link->owner, owner);
            length = zl_ready_pass(&link->ready, limiter->buffer, length, owner);
        }
        pass_on(link, !side, limiter->buffer, length, now);
        if ((size_t)got < wanted)
            break;
    }
    return true;
}

static void on_link(zl_limiter *limiter, uint64_t data, uint32_t events, uint64_t now)
{
    zl_link *link = &limiter->links[data >> 1];
    int side = (int)(data & 1);
    if (!(link->interest[side] & (EPOLLIN | EPOLLOUT)))
        return; /* the link was closed in this round */
    if (link->rest[side] && events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
        pass_rest_on(link, side, now);
    if (link->interest[side] & EPOLLIN && events & (EPOLLIN | EPOLLERR | EPOLLHUP) &&
        !take(limiter, link, side, now))
        return;
    update_link(limiter, link);
}

/* ---- connections ---- */

static int connect_inner(const zl_limiter *limiter)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int spare = fd < 0 ? -1
                       /* libzmq ends the process if accept() gets no descriptor */
                       : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (spare >= 0)
        close(spare);
    if (spare >= 0 && connect(fd, (const struct sockaddr *)&limiter->inner, limiter->inner_length) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* The user of a Unix socket, or ZL_OF_ADDRESS and an address of IPv4, or the network of one of IPv6. */
static uint64_t owner_of(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } peer = {.any.sa_family = AF_UNSPEC};
    socklen_t length = sizeof peer;
    if (getpeername(fd, &peer.any, &length) == 0 && peer.any.sa_family == AF_INET) {
        uint32_t host = ntohl(peer.v4.sin_addr.s_addr);
        return ZL_OF_ADDRESS | (host >> 24 == IN_LOOPBACKNET ? INADDR_LOOPBACK : host);
    }
    if (peer.any.sa_family == AF_INET6) {
        uint64_t network;
        memcpy(&network, &peer.v6.sin6_addr, sizeof network);
        return ZL_OF_ADDRESS | network;
    }
    struct ucred user = {.uid = 0};
    length = sizeof user;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &length) == 0 ? user.uid : ZL_OF_ADDRESS;
}

/* True if the owner may have a further link, with `free_places` places besides it. */
static bool has_share(const zl_limiter *limiter, uint64_t owner, uint32_t free_places)
{
    if (is_privileged(owner))
        return true;
    uint64_t own = links_of(limiter, owner, NULL);
    return own == 0 || own + 1 <= SHARE * (uint64_t)free_places;
}

/* Close the oldest silent link, of `owner` unless `any`.  False: there is none. */
static bool end_silent(zl_limiter *limiter, uint64_t owner, bool any)
{
    zl_link *oldest = NULL;
    for (uint32_t i = 0; i < limiter->used; i++) {
        zl_link *link = &limiter->links[i];
        if (link->fds[PEER] >= 0 && link->frames.count < SPOKEN_FRAMES && (any || link->owner == owner) &&
            (!oldest || link->number < oldest->number))
            oldest = link;
    }
    if (oldest)
        link_refuse(limiter, oldest, &limiter->counts.refused);
    return oldest != NULL;
}

/* True if there is a place for a link of `owner`, perhaps that of a link that was closed for it. */
static bool make_room(zl_limiter *limiter, uint64_t owner)
{
    uint32_t open = atomic_load_explicit(&limiter->counts.open, memory_order_relaxed);
    uint32_t most = atomic_load_explicit(&limiter->connections_max, memory_order_relaxed);
    if (!has_share(limiter, owner, open < most ? most - open - 1 : 0))
        return end_silent(limiter, owner, false);
    return open < most || end_silent(limiter, owner, true);
}

static void link_begin(zl_limiter *limiter, int fd)
{
    uint64_t owner = owner_of(fd);
    int inner = make_room(limiter, owner) ? connect_inner(limiter) : -1;
    if (inner < 0) {
        atomic_fetch_add_explicit(&limiter->counts.refused, 1, memory_order_relaxed);
        close(fd);
        return;
    }
    uint32_t index = limiter->first_free;
    if (index == UINT32_MAX)
        index = limiter->used++;
    else
        limiter->first_free = limiter->links[index].next_free;
    zl_link *link = &limiter->links[index];
    uint64_t number = atomic_load_explicit(&limiter->counts.accepted, memory_order_relaxed);
    *link = (zl_link){.fds = {fd, inner}, .owner = owner, .number = number};
    atomic_fetch_add_explicit(&limiter->counts.open, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&limiter->counts.accepted, 1, memory_order_relaxed);
    update_link(limiter, link);
}

static void set_listening(zl_limiter *limiter, bool listening)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = LISTENER};
    if (listening != limiter->listening &&
        epoll_ctl(limiter->epoll, listening ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, limiter->listener, &event) == 0)
        limiter->listening = listening;
}

static void accept_all(zl_limiter *limiter)
{
    for (int i = 0; i < EVENTS_MAX; i++) {
        int fd = accept4(limiter->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            link_begin(limiter, fd);
        else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            atomic_fetch_add_explicit(&limiter->counts.refused, 1, memory_order_relaxed);
            set_listening(limiter, false); /* until the next end_overdue() */
            return;
        } else if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

/* ---- the loop ---- */

static void end_overdue(zl_limiter *limiter, uint64_t now)
{
    const zl_limits *limits = &limiter->limits;
    limiter->checked_ms = now;
    for (uint32_t i = 0; i < limiter->used; i++) {
        zl_link *link = &limiter->links[i];
        if (link->fds[PEER] < 0)
            continue;
        /* The time limit of messages stands still while peers are paused. */
        if (atomic_load_explicit(&limiter->paused, memory_order_relaxed) || link->rest[INNER])
            link->began_ms = now;
        if (link->frames.message && now - link->began_ms > limits->unfinished_max_ms)
            link_refuse(limiter, link, &limiter->counts.unfinished);
        else if (link->rest[PEER] && limits->unread_max_ms && now - link->stuck_ms > limits->unread_max_ms)
            link_refuse(limiter, link, &limiter->counts.unread);
    }
    set_listening(limiter, !atomic_load_explicit(&limiter->stopping, memory_order_relaxed));
}

/* Pause or resume the peers according to the messages that libzmq's socket has not returned yet. */
static void pause_or_resume(zl_limiter *limiter)
{
    bool before = atomic_load_explicit(&limiter->paused, memory_order_relaxed);
    bool paused = limiter->undrained > limiter->limits.undrained_max_bytes;
    if (paused)
        atomic_store(&limiter->paused,
                     true); /* before `drained` is read; zl_drained() uses the opposite order */
    uint32_t drained = atomic_load(&limiter->drained);
    if (drained != limiter->drained_seen) {
        limiter->drained_seen = drained;
        limiter->undrained = 0;
        paused = false;
    }
    atomic_store(&limiter->paused, paused);
    for (uint32_t i = 0; paused != before && i < limiter->used; i++)
        if (limiter->links[i].fds[PEER] >= 0)
            update_link(limiter, &limiter->links[i]);
}

static int timeout_ms(const zl_limiter *limiter, uint64_t end_ms, uint64_t now)
{
    if (end_ms != UINT64_MAX)
        return end_ms - now < 10 ? (int)(end_ms - now) : 10;
    bool idle = atomic_load_explicit(&limiter->counts.open, memory_order_relaxed) == 0 && limiter->listening;
    return idle ? -1 : CHECK_MS;
}

static void on_event(zl_limiter *limiter, const struct epoll_event *event, uint64_t now)
{
    uint64_t ignored;
    if (event->data.u64 == LISTENER)
        accept_all(limiter);
    else if (event->data.u64 != WAKE)
        on_link(limiter, event->data.u64, event->events, now);
    else if (read(limiter->wake, &ignored, sizeof ignored) < 0)
        return; /* another event of this round has already read it */
}

int zl_run(zl_limiter *limiter)
{
    struct epoll_event events[EVENTS_MAX];
    uint64_t end_ms = UINT64_MAX, now = rb_now_ms();
    for (;;) {
        if (end_ms == UINT64_MAX && atomic_load(&limiter->stopping)) {
            end_ms = now + atomic_load(&limiter->linger_ms);
            set_listening(limiter, false);
        }
        if (now >= end_ms || (end_ms != UINT64_MAX && atomic_load(&limiter->counts.open) == 0))
            return 0;
        int count = epoll_wait(limiter->epoll, events, EVENTS_MAX, timeout_ms(limiter, end_ms, now));
        if (count < 0 && errno != EINTR)
            return errno;
        now = rb_now_ms();
        for (int i = 0; i < count; i++)
            on_event(limiter, &events[i], now);
        pause_or_resume(limiter);
        if (now - limiter->checked_ms >= CHECK_MS)
            end_overdue(limiter, now);
    }
}

static void wake_up(zl_limiter *limiter)
{
    uint64_t one = 1;
    while (write(limiter->wake, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

void zl_stop(zl_limiter *limiter, uint32_t linger_ms)
{
    atomic_store(&limiter->linger_ms, linger_ms);
    atomic_store(&limiter->stopping, true);
    wake_up(limiter);
}

void zl_set_connections_max(zl_limiter *limiter, uint32_t connections_max)
{
    uint32_t capacity = limiter->limits.connections_max;
    atomic_store(&limiter->connections_max, connections_max < capacity ? connections_max : capacity);
}

void zl_drained(zl_limiter *limiter)
{
    atomic_fetch_add(&limiter->drained, 1);
    if (atomic_load(&limiter->paused))
        wake_up(limiter);
}

void zl_read_counts(const zl_limiter *limiter, zl_counts *out)
{
    const counts *counts_now = &limiter->counts;
    *out = (zl_counts){
        .open = atomic_load_explicit(&counts_now->open, memory_order_relaxed),
        .accepted = atomic_load_explicit(&counts_now->accepted, memory_order_relaxed),
        .refused = atomic_load_explicit(&counts_now->refused, memory_order_relaxed),
        .malformed = atomic_load_explicit(&counts_now->malformed, memory_order_relaxed),
        .too_long = atomic_load_explicit(&counts_now->too_long, memory_order_relaxed),
        .unfinished = atomic_load_explicit(&counts_now->unfinished, memory_order_relaxed),
        .unread = atomic_load_explicit(&counts_now->unread, memory_order_relaxed),
        .too_many_bytes = atomic_load_explicit(&counts_now->too_many_bytes, memory_order_relaxed),
    };
}

zl_limiter *zl_open(int listener, const char *inner, uint32_t length, const zl_limits *limits)
{
    zl_limiter *limiter = calloc(1, sizeof *limiter);
    if (!limiter || length >= sizeof limiter->inner.sun_path) {
        free(limiter);
        errno = limiter ? EINVAL : ENOMEM;
        return NULL;
    }
    limiter->limits = *limits;
    limiter->listener = listener;
    zl_set_connections_max(limiter, limits->connections_max);
    limiter->first_free = UINT32_MAX;
    limiter->inner.sun_family = AF_UNIX;
    memcpy(limiter->inner.sun_path + 1, inner, length);
    limiter->inner_length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    limiter->links = calloc(limits->connections_max, sizeof *limiter->links);
    limiter->epoll = epoll_create1(EPOLL_CLOEXEC);
    limiter->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = WAKE};
    if (!limiter->links || limiter->epoll < 0 || limiter->wake < 0 ||
        epoll_ctl(limiter->epoll, EPOLL_CTL_ADD, limiter->wake, &event) < 0) {
        int why = errno;
        zl_close(limiter);
        errno = why;
        return NULL;
    }
    set_listening(limiter, true);
    return limiter;
}

void zl_close(zl_limiter *limiter)
{
    for (uint32_t i = 0; limiter->links && i < limiter->used; i++)
        if (limiter->links[i].fds[PEER] >= 0)
            link_end(limiter, &limiter->links[i]);
    if (limiter->epoll >= 0)
        close(limiter->epoll);
    if (limiter->wake >= 0)
        close(limiter->wake);
    free(limiter->links);
    free(limiter);
}
