"""Rules between settings: combinations of valid values that are not allowed.

Each rule takes the whole configuration and reports to Problems, on the line of the key to change.  A rule
reports no key that has a problem already.  Rules read nothing but the configuration.  The docstring of a rule
states what must hold: docs/reference/configuration.md lists them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from edge.config.address_rules import (
    addresses_are_different,
    console_is_safe,
    listeners_are_apart,
    metrics_are_safe,
    zmq_is_safe,
)
from edge.config.listener_rules import listeners_are_safe, listeners_make_sense
from edge.config.schema import RECORD_OVERHEAD_BYTES, RECORDS_PER_RING, RING_SHARE, Config, Durability
from edge.config.setting_reader import Problems
from edge.config.tenant_rules import listeners_have_tenants, tenants_are_apart
from edge.mqtt.errors import ProtocolError
from edge.mqtt.topic_filters import check_filter

if TYPE_CHECKING:
    from edge.config.toml_positions import Path

T = TypeVar("T")

RINGS_MAX = 120  # one futex_waitv call waits for all of them, and takes 128 words at most
BRIDGES_MAX = 8  # each takes one of the 64 reader slots of every ring, and a thread


def names_are_unique(config: Config, problems: Problems) -> None:
    """Names of streams, producers, bridges and tenants, and destinations of bridges are unique."""
    for section in ("stream", "producer", "bridge", "tenant"):
        names = [table.name for table in getattr(config, section)]
        for index, name, first in _repeated(names):
            path: Path = (section, index, "name")
            problems.add(path, f"{name!r} is taken by {section}[{first}]; give each its own name")
    for index, to, first in _repeated(bridge.to and bridge.to.rstrip("/") for bridge in config.bridge):
        where = f"{_without_password(to)} is taken by bridge[{first}]"
        text = f"{where}; give each its own place: each numbers its files from 1"
        problems.add(("bridge", index, "to"), text)


def _without_password(url: str) -> str:
    """The URL without user and password."""
    return re.sub(r"//[^/]*@", "//", url)


def filters_are_valid(config: Config, problems: Problems) -> None:
    """Every stream has valid topic filters; the stream "default" has the filter "#" and no other."""
    for index, stream in enumerate(config.stream):
        path: Path = ("stream", index, "topics")
        if problems.blames(path):
            continue
        if not stream.topics:
            problems.add(path, 'no topics; write at least one filter, such as topics = ["plant/#"]')
        for number, topic_filter in enumerate(stream.topics):
            try:
                check_filter(topic_filter)
            except ProtocolError as error:
                problems.add((*path, number), f"{error.detail}; correct the filter")
        if stream.name == "default" and tuple(stream.topics) != ("#",):
            text = 'the stream "default" takes the topics of no other stream'
            problems.add(path, f'{text}; write topics = ["#"], or another name')


def rings_hold_their_records(config: Config, problems: Problems) -> None:
    """ring_bytes and journal_bytes are powers of two; a stream's ring holds four records of
    limits.packet_max_bytes.
    """
    limits = config.limits
    packet_max_bytes = config.packet_max_bytes
    longest = packet_max_bytes + min(limits.topic_max_bytes, packet_max_bytes) + RECORD_OVERHEAD_BYTES
    sizes: list[tuple[Path, int]] = [
        (("stream", index, "ring_bytes"), stream.ring_bytes) for index, stream in enumerate(config.stream)
    ]
    sizes += [(("producer", index, "ring_bytes"), it.ring_bytes) for index, it in enumerate(config.producer)]
    if config.sessions.keep:  # otherwise there is no journal
        sizes.append((("sessions", "journal_bytes"), config.sessions.journal_bytes))
    for path, size in sizes:
        if problems.blames(path):
            continue
        if size & (size - 1):
            above = 1 << size.bit_length()
            problems.add(path, f"{size} is not a power of two; write {above >> 1} or {above}")
        elif path[0] == "stream" and size // RECORDS_PER_RING < longest:
            enough = 1 << (RECORDS_PER_RING * longest - 1).bit_length()
            problems.add(
                path,
                f"a ring of {size} holds records of at most {size // RECORDS_PER_RING}, and "
                f"limits.packet_max_bytes = {packet_max_bytes} needs {longest}; write {enough} here, "
                "or lower packet_max_bytes",
            )


def syncs_come_before_the_ring_is_full(config: Config, problems: Problems) -> None:
    """stream.sync_bytes is at most a quarter of ring_bytes."""
    for index, stream in enumerate(config.stream):
        path: Path = ("stream", index, "sync_bytes")
        if problems.blames(path, ("stream", index, "ring_bytes")) or not stream.durability.is_logged:
            continue
        share = stream.ring_bytes // RING_SHARE
        if stream.synced_after_bytes > share:
            problems.add(
                path,
                f"{stream.sync_bytes} is above a quarter of ring_bytes, {share}: the ring "
                "would be full before the log has synced; lower it, or raise ring_bytes",
            )


def durability_can_be_kept(config: Config, problems: Problems) -> None:
    """Durability "upstream" needs a bridge with `start = "oldest"`; `visible = "durable"` needs a log."""
    for index, stream in enumerate(config.stream):
        durability: Path = ("stream", index, "durability")
        if stream.durability is Durability.UPSTREAM and not problems.blames(durability):
            drains = config.bridges_of(stream.name)
            if not drains:
                text = (
                    f'durability "upstream" needs a [[bridge]] that drains stream {stream.name!r}; '
                    'add one, or write "disk"'
                )
                problems.add(durability, text)
            for bridge in drains:
                if bridge.start == "latest":
                    text = (
                        f'start = "latest" skips records that publishers of stream {stream.name!r} wait for; '
                        'write "oldest"'
                    )
                    problems.add(("bridge", config.bridge.index(bridge), "start"), text)
        visible: Path = ("stream", index, "visible")
        if stream.visible == "durable" and not stream.durability.is_logged and not problems.blames(visible):
            text = 'visible = "durable" needs a log; write durability = "interval", "disk" or "upstream"'
            problems.add(visible, text)


def producers_show_what_they_commit(config: Config, problems: Problems) -> None:
    """The stream of a local producer does not have `visible = "durable"`."""
    hiding = {stream.name for stream in config.stream if stream.visible == "durable"}
    for index, producer in enumerate(config.producer):
        path: Path = ("producer", index, "stream")
        if producer.stream in hiding and not problems.blames(path):
            text = (
                f'stream {producer.stream!r} has visible = "durable", and the ring of a local producer shows '
                "what that process commits; give it another stream"
            )
            problems.add(path, text)


def streams_exist(config: Config, problems: Problems) -> None:
    """Producers and bridges name existing streams."""
    known = {stream.name for stream in config.stream if stream.name}  # None: the name has a problem already
    for index, producer in enumerate(config.producer):
        _expect_stream(producer.stream, known, ("producer", index, "stream"), problems)
    for index, bridge in enumerate(config.bridge):
        for number, name in enumerate(bridge.streams or ()):
            _expect_stream(name, known, ("bridge", index, "streams", number), problems)


def rings_can_be_waited_for(config: Config, problems: Problems) -> None:
    """Partitions, producers and local.producers_max are at most 120 together; bridges are at most 8."""
    count = sum(stream.partitions or 0 for stream in config.stream) + len(config.producer)
    if count + config.local.producers_max > RINGS_MAX:
        problems.add(
            ("stream", 0, "partitions"),
            f"{count} partitions and producers, and local.producers_max = {config.local.producers_max}, are "
            f"above the limit of {RINGS_MAX} rings; lower one of them",
        )
    if len(config.bridge) > BRIDGES_MAX:
        text = f"{len(config.bridge)} bridges are above the limit, {BRIDGES_MAX}; remove some"
        problems.add(("bridge", BRIDGES_MAX), text)


def _expect_stream(name: str | None, known: set[str], path: Path, problems: Problems) -> None:
    if name is not None and name not in known and not problems.blames(path):
        problems.add(path, f"there is no stream {name!r}; the streams are {', '.join(sorted(known))}")


def _repeated(values: Iterable[T]) -> Iterable[tuple[int, T, int]]:
    """(index, value, index of the first) of each repeated value."""
    first: dict[T, int] = {}
    for index, value in enumerate(values):
        if value is not None and first.setdefault(value, index) != index:
            yield index, value, first[value]


def plugins_are_different(config: Config, problems: Problems) -> None:
    """A plug-in class is used once."""
    for index, path, first in _repeated(plugin.path for plugin in config.auth.plugin):
        text = f"{path} is auth.plugin[{first}] already; a class is used once"
        problems.add(("auth", "plugin", index, "class"), text)


def disk_steps_rise(config: Config, problems: Problems) -> None:
    """log.disk_warn_percent, disk_delete_percent and disk_read_only_percent do not fall in this order."""
    log = config.log
    paths: list[Path] = [("log", f"disk_{step}_percent") for step in ("warn", "delete", "read_only")]
    steps = (log.disk_warn_percent, log.disk_delete_percent, log.disk_read_only_percent)
    for path, before, step in zip(paths[1:], steps, steps[1:], strict=False):
        if step < before and not problems.blames(*paths):
            problems.add(path, f"{step} is below the step before it, {before}; they must not fall")


def caps_have_bytes(config: Config, problems: Problems) -> None:
    """`stream.discard = "new"` needs retain_bytes and a durability other than "process"."""
    for index, stream in enumerate(config.stream):
        path: Path = ("stream", index, "discard")
        if stream.discard == "new" and not stream.retain_bytes and not problems.blames(path):
            problems.add(path, 'discard = "new" needs retain_bytes; set it')
        if stream.discard == "new" and not stream.durability.is_logged and not problems.blames(path):
            problems.add(
                path, 'discard = "new" needs a log; write durability = "interval", "disk" or "upstream"'
            )


RULES = (
    disk_steps_rise,
    caps_have_bytes,
    names_are_unique,
    listeners_are_apart,
    addresses_are_different,
    tenants_are_apart,
    listeners_have_tenants,
    listeners_are_safe,
    listeners_make_sense,
    filters_are_valid,
    rings_hold_their_records,
    syncs_come_before_the_ring_is_full,
    durability_can_be_kept,
    producers_show_what_they_commit,
    streams_exist,
    rings_can_be_waited_for,
    zmq_is_safe,
    plugins_are_different,
    metrics_are_safe,
    console_is_safe,
)
