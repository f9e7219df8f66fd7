"""Descriptor budget: the number of open files that each part of the broker gets.

Owns the numbers, the soft limit of the process (RLIMIT_NOFILE) and the size of its table of descriptors.

A broker without descriptors cannot seal a segment, write a session snapshot or answer `brim status`, and
libzmq ends the process when accept() on its Unix socket fails for lack of one. So clients get only what the
other parts leave:

    open at the start | kept for the broker's own files | control, metrics, ZeroMQ, producers | clients

Invariant: all that budget() gives, together with the descriptors already open, is within the limit.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import resource

from msgspec import Struct
from msgspec.structs import replace

from edge.config.schema import Config
from edge.errors import FILES_REMEDY, EdgeError
from edge.logging_setup import pairs

log = logging.getLogger(__name__)


START = 64  # open before clients connect: interpreter, event loops, locks
OF_RING = 10  # files, locks and readers of one ring
OWN_MIN = 10  # opened after the clients' start: the event loop, its sockets, one snapshot, one lookup
OF_ENDPOINT = 10  # of ZeroMQ, which opens them for its first peer: threads, sockets, wake-ups
OF_KEYS = 6  # more if its peers have keys
OF_LOG = 6  # the next segment, its footer, the directory, one read
OF_BRIDGE = 24  # its checkpoint, and `window` transfers to a store
METRICS = 64
PEERS = 1_024  # of each ZeroMQ endpoint
OTHERS_SHARE = 8  # if not all can have the maximum, each part except the clients gets an eighth at most
SHARE_MIN = 2


class DescriptorBudget(Struct, frozen=True):
    """Connections that each part may have at once."""

    clients: int
    local: int  # of the control socket
    metrics: int
    peers: int  # of each ZeroMQ endpoint
    producers: int  # rings of local producers that join later


def open_now() -> int:
    """Number of open descriptors of this process. Raises OSError if none is left to count them."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # without the descriptor of the directory itself
    except FileNotFoundError:  # without /proc
        return START


def allow(config: Config) -> int:
    """Raise the soft limit to the broker's need, within the hard limit. Returns the limit from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = _required(config)
    if soft == resource.RLIM_INFINITY or soft >= descriptors:
        return soft if soft != resource.RLIM_INFINITY else descriptors
    allowed = descriptors if hard == resource.RLIM_INFINITY else min(descriptors, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def make_table(config: Config, allowed: int) -> None:
    """Enlarge the kernel's table of descriptors at once. Must be called before threads begin.

    In a process with threads the kernel waits for all processors when it doubles the table. Each doubling
    while clients connected stopped the MQTT thread for 5 to 24 ms.
    """
    last = min(allowed, _required(config)) - 1
    with contextlib.suppress(OSError), open(os.devnull, "rb") as file:
        os.close(fcntl.fcntl(file.fileno(), fcntl.F_DUPFD_CLOEXEC, last))


def budget(config: Config, allowed: int, opened: int) -> DescriptorBudget:
    """Divide the rest of `allowed` descriptors when `opened` are in use.

    Raises EdgeError if not one client could connect.
    """
    left = allowed - opened - _own(config)
    limits = _most(config)
    share = left if left >= _taken(config, limits) else max(SHARE_MIN, left // OTHERS_SHARE)
    granted = DescriptorBudget(
        clients=limits.clients,
        local=min(limits.local, share),
        metrics=min(limits.metrics, share),
        peers=min(limits.peers, max(1, share // max(1, _endpoints(config)))),
        producers=min(limits.producers, share // _of_producer(config)),
    )
    over = max(0, _taken(config, granted) - left)
    clients = limits.clients - over
    if clients < 1:
        raise refusal(f"{opened} are open and the broker keeps {_own(config)} for its own files")
    if clients < limits.clients:
        details = pairs(
            clients=clients, connections_max=limits.clients, open_files_max=allowed, opened=opened
        )
        log.warning("fewer clients are accepted than limits.connections_max; %s %s", FILES_REMEDY, details)
    return replace(granted, clients=clients)


def refusal(reason: object) -> EdgeError:
    """The error of a start with too few descriptors."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return EdgeError(f"{allowed} files may be open, too few to start: {reason}", hint=FILES_REMEDY)


def _endpoints(config: Config) -> int:
    """Number of ZeroMQ endpoints."""
    return config.zmq.enabled + config.consumers.enabled


def _most(config: Config) -> DescriptorBudget:
    """The maximum of each part."""
    return DescriptorBudget(
        clients=config.limits.connections_max,
        local=config.local.connections_max,
        metrics=METRICS,
        peers=PEERS,
        producers=config.local.producers_max + len(config.producer),
    )


def _taken(config: Config, granted: DescriptorBudget) -> int:
    """Descriptors that a budget takes."""
    others = granted.local + granted.metrics + granted.peers * _endpoints(config)
    others += granted.producers * _of_producer(config)
    return others + granted.clients


def _own(config: Config) -> int:
    """Files that the broker opens later for itself.

    ZeroMQ's are among them: libzmq ends a process that has no descriptor for it.
    """
    bridges = sum(bridge.in_broker for bridge in config.bridge)
    publisher_needs_keys = config.zmq.enabled and config.zmq.secret_key_file is not None
    with_keys = publisher_needs_keys + (config.consumers.enabled and config.consumers_need_keys)
    endpoints = OF_ENDPOINT * _endpoints(config) + OF_KEYS * with_keys
    return OWN_MIN + endpoints + _logs(config) * OF_LOG + bridges * OF_BRIDGE


def _logs(config: Config) -> int:
    """Number of logs, without those of isolated producers."""
    logged = [stream for stream in config.stream if stream.durability.is_logged]
    isolated = sum(stream.partitions for stream in logged if stream.isolated)
    shared = config.log.workers if len(logged) > sum(stream.isolated for stream in logged) else 0
    producers = bool(shared) and _most(config).producers > 0
    sessions = config.sessions.keep and config.sessions_durability.is_logged
    return isolated + shared + producers + sessions


def _of_producer(config: Config) -> int:
    """Descriptors of one ring of a local producer."""
    has_log = any(stream.isolated and stream.durability.is_logged for stream in config.stream)
    return OF_RING + (OF_LOG if has_log else 0)


def _required(config: Config) -> int:
    """Descriptors with which every part may have its configured maximum."""
    rings = sum(stream.partitions for stream in config.stream) + 1  # the last one is the journal of sessions
    return START + rings * OF_RING + _own(config) + _taken(config, _most(config))
