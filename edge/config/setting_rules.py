"""Rules between settings: combinations of valid values that are not allowed.

Each rule takes the whole configuration and reports to Problems, on the line of the key to change.  A rule
reports no key that has a problem already.  Rules read nothing but the configuration.  The docstring of a rule
states what must hold: docs/reference/configuration.md lists them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from edge.config.listener import Listener, is_loopback
from edge.config.listener_rules import UNIX_PATH_MAX_BYTES, listeners_are_safe, listeners_make_sense
from edge.config.schema import RECORD_OVERHEAD_BYTES, RECORDS_PER_RING, RING_SHARE, Config, Durability
from edge.config.setting_reader import Problems, shown
from edge.config.tenant_rules import listeners_have_tenants, tenants_are_apart
from edge.mqtt.errors import ProtocolError
from edge.mqtt.topic_filters import check_filter

if TYPE_CHECKING:
    from edge.config.toml_positions import Path

T = TypeVar("T")

RINGS_MAX = 120  # one futex_waitv call waits for all of them, and takes 128 words at most
BRIDGES_MAX = 8  # each takes one of the 64 reader slots of every ring, and a thread
PORT_MAX = 65535
IPV4_ANY = ipaddress.IPv4Address(0)  # 0.0.0.0


def names_are_unique(config: Config, problems: Problems) -> None:
    """Names of streams, producers, bridges, tenants, and addresses of listeners and bridges are unique."""
    for section in ("stream", "producer", "bridge", "tenant"):
        names = [table.name for table in getattr(config, section)]
        for index, name, first in _repeated(names):
            path: Path = (section, index, "name")
            problems.add(path, f"{name!r} is taken by {section}[{first}]; give each its own name")
    for index, listener in enumerate(config.listener):
        place = _place(listener)
        owner = next((one for one in range(index) if _share(place, _place(config.listener[one]))), None)
        if owner is not None:
            own = "port" if listener.path is None else "path"
            text = f"{_written(listener)} is taken by listener[{owner}]; give each its own {own}"
            problems.add(("listener", index), text)
    for index, to, first in _repeated(bridge.to and bridge.to.rstrip("/") for bridge in config.bridge):
        where = f"{_without_password(to)} is taken by bridge[{first}]"
        text = f"{where}; give each its own place: each numbers its files from 1"
        problems.add(("bridge", index, "to"), text)


def _without_password(url: str) -> str:
    """The URL without user and password."""
    return re.sub(r"//[^/]*@", "//", url)


def _written(listener: Listener) -> str:
    """Address or path of a listener, as the file has it."""
    return str(listener.path or f"{listener.host}:{listener.port}")


def _place(listener: Listener) -> tuple[str, int] | None:
    """Host and port of a listener, in one form, or path and 0; None: a free port.

    "*" is every address: of the hosts "::" only that of a listener takes IPv4, too.
    """
    if listener.path is not None:
        return str(listener.path), 0
    host = _one_form(listener.host)
    return ("*" if host == "::" else host, listener.port) if listener.port else None


def _one_form(host: str) -> str:
    """An address in its usual form; localhost as 127.0.0.1, and * of ZeroMQ as 0.0.0.0."""
    host = {"localhost": "127.0.0.1", "*": str(IPV4_ANY)}.get(host.lower(), host.strip("[]"))
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


def _share(place: tuple[str, int] | None, other: tuple[str, int] | None) -> bool:
    """True if only one of two places can be bound: one may be every address of the machine."""
    if place is None or other is None or place[1] != other[1]:
        return False
    return _covers(place[0], other[0]) or _covers(other[0], place[0])


def _covers(host: str, other: str) -> bool:
    if host in {other, "*"}:
        return True
    try:
        address, every = ipaddress.ip_address(other), ipaddress.ip_address(host)
    except ValueError:  # a name or a path
        return False
    return every.is_unspecified and every.version == address.version


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


def zmq_is_safe(config: Config, problems: Problems) -> None:
    """Endpoints that other machines reach need secret_key_file and client_keys_dir of [zmq], both."""
    zmq = config.zmq
    if zmq.enabled:
        _endpoint_is_safe("zmq", zmq.endpoint, config.zmq_endpoint, config, problems)
    if config.consumers.enabled:
        own = config.consumers.endpoint
        _endpoint_is_safe("consumers", own, config.consumers_endpoint, config, problems)
    if (zmq.secret_key_file is None) != (zmq.client_keys_dir is None):
        text = "secret_key_file and client_keys_dir belong together; add the other, or remove this one"
        problems.add(("zmq",), text)


def split_address(listen: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT", "[HOST]:PORT".  Raises ValueError."""
    host, _, port = listen.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise ValueError(listen)
    return host.removeprefix("[").removesuffix("]"), int(port)


def metrics_are_safe(config: Config, problems: Problems) -> None:
    """`metrics.listen` has a port, and other machines reach it only with a token or client certificates."""
    path: Path = ("metrics", "listen")
    listen = config.metrics.listen
    if not listen or problems.blames(path):
        return
    try:
        host, _ = split_address(listen)
    except ValueError:
        problems.add(path, f"{shown(listen)} is not an address; write 127.0.0.1:9464")
        return
    tls = config.metrics.tls
    is_mutual = tls is not None and tls.client_ca_file is not None and tls.require_client_certificate
    if not is_loopback(host) and config.metrics.token_file is None and not is_mutual:
        problems.add(
            path,
            f"{listen} is reached from other machines, by anybody; write 127.0.0.1:9464, or add token_file, "
            "or [metrics.tls] with client_ca_file",
        )


def console_is_safe(config: Config, problems: Problems) -> None:
    """`web.listen` has a port; other machines reach it only with users_file and [web.tls].

    With [auth], or with `web.host_names`, the console needs users_file, too: its pages show messages.
    """
    web, path = config.web, ("web", "listen")
    if not web.listen or problems.blames(path):
        return
    try:
        host, _ = split_address(web.listen)
    except ValueError:
        problems.add(path, f"{shown(web.listen)} is not an address; write 127.0.0.1:8080")
        return
    if not is_loopback(host) and (web.users_file is None or web.tls is None):
        problems.add(
            path,
            f"{web.listen} is reached from other machines; write 127.0.0.1:8080, or add users_file and "
            "[web.tls]",
        )
    elif web.users_file is None:
        if config.auth.requires_login or config.auth.acl_file is not None:
            problems.add(path, "the pages show messages, which [auth] protects; add users_file")
        for name in ("admins", "operators", "host_names"):
            if getattr(web, name):
                problems.add(("web", name), f"web.{name} needs users; add users_file")


def _endpoint_is_safe(section: str, written: str, endpoint: str, config: Config, problems: Problems) -> None:
    path: Path = (section, "endpoint")
    scheme, separator, place = endpoint.partition("://")
    if problems.blames(path):
        return
    if (
        not separator
        or scheme not in {"ipc", "tcp"}
        or not place
        or (scheme == "tcp" and not _has_port(place))
    ):
        problems.add(path, f"{shown(written)} is not an endpoint; write ipc:///PATH or tcp://127.0.0.1:PORT")
    elif scheme == "ipc" and written and len(place.encode()) > UNIX_PATH_MAX_BYTES:
        text = f"{place} is longer than the {UNIX_PATH_MAX_BYTES} bytes that the kernel allows"
        problems.add(path, f"{text}; choose a shorter one")
    elif scheme == "tcp" and not (is_loopback(place.rpartition(":")[0]) or config.zmq.secret_key_file):
        problems.add(
            path,
            f"{written} is reached from other machines, unencrypted and by anybody; write "
            "tcp://127.0.0.1:PORT, or add secret_key_file and client_keys_dir to [zmq]",
        )


def _has_port(place: str) -> bool:
    """True if a port, or * for a free one, ends an address of ZeroMQ."""
    try:
        split_address(re.sub(r":\*$", ":0", place))
    except ValueError:
        return False
    return True


def _bound_place(address: str) -> tuple[str, int] | None:
    """As _place(), of an address or an endpoint of ZeroMQ; None: it is empty, or a free port."""
    try:
        host, port = split_address(re.sub(r":\*$", ":0", address.removeprefix("tcp://")))
    except ValueError:
        path = address.removeprefix("ipc://")
        return (path, 0) if path else None
    return (_one_form(host), port) if port else None


def addresses_are_different(config: Config, problems: Problems) -> None:
    """Metrics, console and ZeroMQ have other addresses than the listeners, and than each other.

    localhost counts as 127.0.0.1. An address that stands for all others takes its port on each of them.
    """
    taken = [(_place(listener), f"listener[{index}]") for index, listener in enumerate(config.listener)]
    for section, key, address in (
        ("metrics", "listen", config.metrics.listen),
        ("web", "listen", config.web.listen),
        ("zmq", "endpoint", config.zmq.endpoint if config.zmq.enabled else ""),
        ("consumers", "endpoint", config.consumers.endpoint if config.consumers.enabled else ""),
    ):
        place = _bound_place(address)
        if place is None or problems.blames((section, key)):
            continue
        owner = next((owner for other, owner in taken if _share(place, other)), None)
        if owner is not None:
            text = f"{address.removeprefix('tcp://')} is taken by {owner}; give each its own address"
            problems.add((section, key), text)
        taken.append((place, f"{section}.{key}"))


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
