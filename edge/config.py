"""Every setting of the broker: its default, its limits, its unit and why.

Owns the meaning of the configuration file and the relations between settings.  Never starts anything, and
looks at the machine only for default directories and the host name; the libraries take values, not these.
`brim run` needs no file: Config() is a working broker on 127.0.0.1:1883.

Sizes are bytes, and durations have the unit that ends their key; in the file a string with a unit, such as
"64 MiB" or "7 d", does as well (edge/units.py).  Relative paths are relative to the file.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from edge.config_listener import Listener, Tls
from edge.config_quota import OwnerQuota, Quota
from edge.config_reader import Problems, read_struct, read_toml, read_values
from edge.config_rules import RING_SHARE, RULES, longest_packet_bytes
from edge.directories import StrPath, default_runtime_dir, default_state_dir
from edge.errors import ConfigError

__all__ = [
    "DEFAULT_STREAM", "NAME_PATTERN", "NAME_RULE", "Auth", "Bridge", "Config", "Consumers", "DefaultBytes",
    "Durability",
    "Limits", "Listener", "Local", "Log", "Metrics", "OwnerQuota", "Plugin", "Producer",
    "Quota", "Sessions", "Stream", "Sys", "Tls", "Zmq", "checked", "load", "overridden", "parse",
]  # fmt: skip

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

DEFAULT_STREAM = "default"

# File names, ring names ("stream-0", "stream@producer") and object keys are made of these, and 24 + 1 + 24
# stays below the 55 bytes that a ring's header has for its name.
NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,23}\Z"
NAME_RULE = "write 1 to 24 of a-z, 0-9, - and _, a letter or digit first"
Name = Annotated[str, Meta(pattern=NAME_PATTERN, description=NAME_RULE)]

Filter = Annotated[str, Meta(description="an MQTT topic filter")]
RingBytes = Annotated[
    int,
    Meta(ge=64 * KIB, le=4 * GIB, description="a power of two; all rings together have to fit in memory"),
]
Milliseconds = Annotated[int, Meta(ge=1, le=3_600_000, description="milliseconds, up to an hour")]
Percent = Annotated[int, Meta(ge=1, le=101, description="percent of the disk; 101: never")]
Durability = Literal["process", "interval", "disk", "upstream"]
Uid = Annotated[int, Meta(ge=0, le=(1 << 32) - 2, description="a number, as `id -u NAME` prints it")]


class DefaultBytes(int):
    """A size that is not configured: the start lowers it where there is no room (edge/ring_sizes.py)."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one client, or all of them, may take: nothing grows without bound, in [limits]."""

    # About 6 KiB each, and a file descriptor, for which `brim run` raises its soft limit.
    # Three quarters of them, which one address may have, are enough for a gateway with 10,000 devices.
    connections_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 16_384
    # From accept to a whole CONNECT: a trickle of bytes must not hold a connection.
    connect_timeout_s: Annotated[int, Meta(ge=1, le=300)] = 5
    # Before CONNECT is accepted nobody may make us buffer more than this: its five fields at their longest,
    # 65,535 bytes each, and properties.
    connect_max_bytes: Annotated[int, Meta(ge=256, le=MIB)] = 384 * KIB
    # MQTT allows 256 MiB.  Not set: what every ring has room for, which of rings of 64 MiB is 15.9 MiB, and
    # never more than 16 MiB (Config.packet_max_bytes).
    packet_max_bytes: Annotated[int, Meta(ge=256, le=256 * MIB)] | None = None
    # Of any packet but PUBLISH, since each is handled at one go.
    control_packet_max_bytes: Annotated[int, Meta(ge=256, le=16 * MIB)] = MIB
    # In one CONNECT (and in its will), SUBSCRIBE, UNSUBSCRIBE, DISCONNECT or AUTH; one takes about a
    # microsecond, also before log-in.  A PUBLISH may have any number: it is not decoded in Python.
    user_properties_max: Annotated[int, Meta(ge=0, le=100_000)] = 256
    # In one SUBSCRIBE or UNSUBSCRIBE; one takes about 2 microseconds until other clients have their turn.
    packet_filters_max: Annotated[int, Meta(ge=1, le=100_000)] = 1_024
    # Memory of packets that are not whole yet, of all clients together; twice the longest packet at least.
    # Beyond it clients wait in line, and the oldest packets end with their connections (0x97).
    unfinished_max_bytes: Annotated[int, Meta(ge=MIB, le=64 * GIB)] = 256 * MIB
    keep_alive_max_s: Annotated[int, Meta(ge=1, le=65535)] = 65535  # for clients that ask for none
    allow_empty_client_id: bool = True  # false: clients without an identifier are refused
    # The highest QoS of what clients publish, and of what their subscriptions are granted.
    qos_max: Annotated[int, Meta(ge=0, le=2)] = 2
    # Of what clients publish; not set: what fits into packet_max_bytes.
    payload_max_bytes: Annotated[int, Meta(ge=1, le=256 * MIB)] | None = None
    client_id_max_bytes: Annotated[int, Meta(ge=23, le=65535)] = 65535  # all that MQTT allows
    topic_max_bytes: Annotated[int, Meta(ge=1, le=65535)] = 65535  # all that MQTT allows
    topic_levels_max: Annotated[int, Meta(ge=1, le=1024)] = 201  # 200 slashes, which Mosquitto takes as well
    topics_max: Annotated[int, Meta(ge=1, le=1 << 24)] = 1_000_000  # known topics, about 400 bytes each
    # Their names; a level beyond the eighth counts 128 bytes, since matching walks level by level.
    topics_max_bytes: Annotated[int, Meta(ge=MIB, le=64 * GIB)] = 256 * MIB
    # A topic that nobody has used for so long, or twice, and that retains nothing may be forgotten: only its
    # first message after that takes longer.
    topics_idle_s: Annotated[int, Meta(ge=1, le=365 * 86_400)] = 3_600
    # Of one client; hubs of home automation have thousands.
    subscriptions_max: Annotated[int, Meta(ge=1, le=100_000)] = 10_000
    # Their filters, and 128 bytes for each level of them.
    subscriptions_max_bytes: Annotated[int, Meta(ge=KIB, le=GIB)] = 8 * MIB
    # The same, of all clients together.
    filters_max_bytes: Annotated[int, Meta(ge=KIB, le=64 * GIB)] = 256 * MIB
    # MQTT 5 topic aliases: how many a client may set, and how many we set towards one that takes some.
    topic_alias_max: Annotated[int, Meta(ge=0, le=65535)] = 32
    # Records waiting for one client, live or away; beyond it the oldest go, and are counted.
    queued_records_max: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    queued_records_drop: Literal["oldest", "newest"] = "oldest"  # the newest reading is what matters
    # 15 to 16 bytes a record, of all clients together; beyond it nothing more is queued for anybody.
    queues_max_bytes: Annotated[int, Meta(ge=MIB, le=64 * GIB)] = 256 * MIB
    # Copies of QoS 1 and 2 records that a ring without a log overwrites while a client still waits for them.
    spill_max_bytes: Annotated[int, Meta(ge=0, le=64 * GIB)] = 64 * MIB
    # Topic, payload and properties of one will, and of those of all clients.  As the memory fills, large ones
    # are refused first.
    will_max_bytes: Annotated[int, Meta(ge=KIB, le=MIB)] = 128 * KIB
    wills_max_bytes: Annotated[int, Meta(ge=MIB, le=16 * GIB)] = 16 * MIB
    # QoS 1 and 2 messages under way at once: to one client (paho and mosquitto take 100 without a word), and
    # from one, which wait for the disk.
    in_flight_max: Annotated[int, Meta(ge=1, le=65535)] = 100
    # And so many bytes of them to one client: beyond it the next waits for an acknowledgement; 0: any.
    in_flight_max_bytes: Annotated[int, Meta(ge=0, le=64 * GIB)] = 0
    receive_max: Annotated[int, Meta(ge=1, le=65535)] = 1_024
    # Sessions that outlast their connection, connected or not; beyond it new ones are refused.
    sessions_max: Annotated[int, Meta(ge=1, le=10_000_000)] = 16_384
    session_expiry_s: Annotated[int, Meta(ge=0, le=(1 << 32) - 1)] = 7 * 86_400  # of a client that is away
    retained_max: Annotated[int, Meta(ge=0, le=10_000_000)] = 100_000  # retained messages
    retained_max_bytes: Annotated[int, Meta(ge=0, le=64 * GIB)] = 64 * MIB  # of them all


class Stream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A class of topics that share rings and a policy, in [[stream]].

    A topic belongs to the first stream that has a filter for it.
    """

    name: Name
    topics: tuple[Filter, ...]
    # Order holds within a partition, and a topic always goes to the same one.
    partitions: Annotated[int, Meta(ge=1, le=64, description="one ring each")] = 1
    # Of one partition: 25 s of 10,000 messages of 200 bytes.  Not set: less where runtime_dir has no room.
    ring_bytes: RingBytes = DefaultBytes(64 * MIB)
    # What happens to a publisher when a reader that was promised every record has not kept up:
    # overwrite: none is promised but the log, which publishers wait for, and a reader is told what it lost;
    # block: the publisher waits; reject: it is refused.
    when_full: Literal["overwrite", "block", "reject"] = "overwrite"
    # How long `block` waits before it rejects: well below the patience of any client.
    queue_timeout_ms: Milliseconds = 200
    # What a PUBACK means.  process: in the ring, survives the broker's death; interval: in the log too, which
    # is synced every sync_interval_ms; disk: synced before the PUBACK; upstream: every [[bridge]] that drains
    # the stream has been told by its sink that it has the record; the log is written as for interval.
    durability: Durability = "process"
    # When subscribers of every kind are shown a record.  commit: at once; durable: when its log has been
    # synced, so that no power cut can undo what somebody has seen.
    visible: Literal["commit", "durable"] = "commit"
    isolated: bool = False  # whether each of its rings has a log of its own, in a directory of its name
    sync_interval_ms: Milliseconds = 1_000  # `interval`: what a power cut may cost
    # And sync earlier after as much; not set: 1 MiB, or a quarter of a ring that is smaller than 4 MiB.
    sync_bytes: Annotated[int, Meta(ge=4 * KIB, le=GIB)] | None = None
    # What the log keeps of it; a segment goes when all streams with records in it let it go.  Both 0: as
    # [log] says.
    retain_bytes: Annotated[int, Meta(ge=0, le=1 << 50)] = 0  # at least
    retain_s: Annotated[int, Meta(ge=0, le=1 << 32)] = 0
    # At retain_bytes: old: the oldest records go; new: publishers are refused until there is room again, by
    # age, or because all bridges and consumers of the stream have what is in the oldest segment.
    discard: Literal["old", "new"] = "old"
    # As much is kept beyond that for bridges and consumers that have not read it; then they lose it.
    hold_bytes: Annotated[int, Meta(ge=0, le=1 << 50)] = GIB

    @property
    def synced_after_bytes(self) -> int:
        """sync_bytes, or what is right for the ring."""
        return self.sync_bytes or min(MIB, self.ring_bytes // RING_SHARE)


class Plugin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plug-in of amqtt that decides about clients or topics or hears of clients, in [[auth.plugin]]."""

    path: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+\Z",
            description='write "package.module.Class", such as "amqtt.contrib.jwt.UserAuthJwtPlugin"',
        ),
    ] = field(name="class")
    options: dict[str, Any] = {}  # as its own Config class names them


class Auth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who may connect, and what it may publish and receive, in [auth].

    With a password file or a plug-in that authenticates, whoever gives no user name is refused, unless its
    listener has allow_anonymous = true or a plug-in lets it in.  SIGHUP reads both files again.
    """

    password_file: Path | None = None  # of `brim passwd` or mosquitto_passwd
    acl_file: Path | None = None  # as Mosquitto's acl_file; without it everybody may do everything
    # Withhold a retained message while the rules do not let its client publish to its topic: checked at the
    # start, and each time the rules are read.
    check_retain_source: bool = True
    plugin: tuple[Plugin, ...] = ()

    @property
    def asks_names(self) -> bool:
        """Whether clients may have to say who they are."""
        return self.password_file is not None or bool(self.plugin)


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The segment log, used when a stream's durability asks for one, in [log]."""

    directory: Path | None = None  # state_dir/log
    segment_bytes: Annotated[int, Meta(ge=MIB, le=4 * GIB)] = 64 * MIB  # what retention deletes at once
    # Of each log, all files together, whatever streams say.
    retain_bytes: Annotated[int, Meta(ge=0, le=1 << 50, description="0 keeps everything")] = 4 * GIB
    # Of streams that say nothing themselves; 0: no record is too old.
    retain_s: Annotated[int, Meta(ge=0, le=1 << 32)] = 0
    # A segment is ended so long after it began: what is not ended is neither compressed nor removed.
    segment_age_s: Annotated[int, Meta(ge=0, le=1 << 32, description="0: only when it is full")] = 3_600
    # When so much of the disk is in use: a line in the log; the oldest segments go, whatever the rules say;
    # records are no longer taken, rather than fill the disk of others.  Of a larger disk 64 GiB count.
    disk_warn_percent: Percent = 75
    disk_delete_percent: Percent = 85
    disk_read_only_percent: Percent = 95
    # Compress segments once they are whole, to a tenth or less; they are read as before.  Wants the extra
    # `archive` before Python 3.14.
    archive: bool = False
    # Read everything again, from time to time and slowly, so that rot is known while there are other copies.
    scrub_bytes_per_s: Annotated[int, Meta(ge=0, le=1 << 40, description="0: never")] = 8 * MIB
    scrub_interval_s: Annotated[int, Meta(ge=60, le=1 << 32)] = 7 * 86_400
    # Logs that the rings of all streams that are not isolated are spread over, each with a thread: more than
    # one pays where the directory is on several devices, or one that takes many requests at once.
    workers: Annotated[int, Meta(ge=1, le=16)] = 1
    # Write by whole blocks of the device, past the page cache, where the file system takes that: less work
    # for the processor, fewer bytes for flash to wear by.  Not: where one takes it and is slow at it.
    direct: bool = True


class Zmq(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ZeroMQ publisher, in [zmq]."""

    enabled: bool = True
    endpoint: str = ""  # ipc://RUNTIME_DIR/zmq.sock
    # Messages waiting for one subscriber; beyond it they are dropped, and counted.
    send_high_water: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    # CURVE, without which no endpoint off loopback is opened: our certificate with its secret key, and the
    # directory of the public certificates of those who may subscribe.
    secret_key_file: Path | None = None
    client_keys_dir: Path | None = None


class Consumers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Named consumers and consumer groups, over ZeroMQ, in [consumers].

    With CURVE keys as in [zmq], without which no endpoint off loopback is opened.
    """

    enabled: bool = True
    endpoint: str = ""  # ipc://RUNTIME_DIR/consumers.sock
    # How long a consumer has a record before it comes again, unless it says that it is still at work.
    lease_ms: Milliseconds = 30_000
    tries_max: Annotated[int, Meta(ge=0, le=1_000, description="0: for ever")] = 5  # then it is a dead letter
    # Before the second try, doubled for each further one.
    backoff_ms: Milliseconds = 100
    backoff_max_ms: Milliseconds = 60_000
    # Records of a partition between the first that a group has not done and the last that it was handed.
    records_max: Annotated[int, Meta(ge=1, le=100_000_000)] = 1_000_000
    # Dead letters are published to {dead_letter_topic}/{group}/{topic}; "": they are dropped, and counted.
    dead_letter_topic: Annotated[
        str,
        Meta(pattern=r"^([^$+#/][^+#]{0,255})?\Z", description="a topic without wildcards and $"),
    ] = "dead"
    groups_max: Annotated[int, Meta(ge=1, le=10_000)] = 256
    members_max: Annotated[int, Meta(ge=1, le=10_000)] = 256  # of one group


class Local(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Processes of this machine that use shared memory, in [local]."""

    connections_max: Annotated[int, Meta(ge=1, le=4096)] = 128  # twice the 64 cursor slots of a ring
    # Who besides the broker's own user may hold a writer back, on streams that block or reject.
    gating_uids: tuple[Uid, ...] = ()
    # Rings that processes of the broker's own user may have without a [[producer]] of their name.
    producers_max: Annotated[int, Meta(ge=0, le=64)] = 16


class Producer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process of this machine that writes a ring of its own, in [[producer]]."""

    name: Name
    stream: Name
    ring_bytes: RingBytes = 64 * MIB  # records are at most a quarter of it
    uids: tuple[Uid, ...] = ()  # who may be it, besides the broker's own user


class Bridge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Records on their way to somewhere else, in [[bridge]]."""

    name: Name
    to: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9+.-]*:", description="a URL, such as file:///srv/lake")]
    in_broker: bool = True  # false: it is run by `brim bridge run NAME`, as a process of its own
    streams: tuple[Name, ...] = ()  # all, and their local producers
    options: dict[str, str | bool | int | float] = {}  # of the sink, such as region or endpoint
    start: Literal["oldest", "latest"] = "oldest"  # of a partition that was never drained
    # A file is cut when it has so many bytes or records, or when the oldest has waited so long: larger files
    # cost less, and arrive later.
    unit_bytes: Annotated[int, Meta(ge=4 * KIB, le=GIB)] = 8 * MIB
    unit_records: Annotated[int, Meta(ge=1, le=1 << 30)] = 1_000_000
    linger_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 1_000
    compress: Literal["none", "zstd"] = "none"  # files: zstd wants pip install 'brim[archive]'
    window: Annotated[int, Meta(ge=1, le=64)] = 4  # files or batches under way at once; unit_bytes each
    # Resend window of Kafka and MQTT: at most so much is sent again after a kill -9 of the bridge.
    resend_max_records: Annotated[int, Meta(ge=1, le=1 << 30)] = 50_000
    resend_max_bytes: Annotated[int, Meta(ge=4 * KIB, le=GIB)] = 8 * MIB
    rate_bytes_s: Annotated[int, Meta(ge=0, le=1 << 40)] = 0  # at most; 0: as fast as the sink takes it
    # When records have waited for ten seconds, what comes in from then on goes beside them, with this share
    # of the bytes. 0: strictly in order.
    live_share: Annotated[float, Meta(ge=0, le=0.95)] = 0.7
    priorities: dict[Name, int] = {}  # of streams: higher goes first; the others have 0
    # For sinks that take records, not files: topic filters, new beginnings of topics by old ones, and a
    # plug-in, "package.module:function" (bridge/transform.py).
    topics: tuple[Filter, ...] = ()  # all
    topics_not: tuple[Filter, ...] = ()
    remap: dict[str, str] = {}
    transform: str = ""
    stall_s: Annotated[int, Meta(ge=1, le=1 << 31)] = 300  # records wait, none is drained: that is said
    backoff_max_ms: Annotated[int, Meta(ge=500, le=3_600_000)] = (
        60_000  # between tries while the sink is away
    )


def host_edge_id() -> str:
    """The host name, fit for a path: what an edge is called that was given no name."""
    return re.sub(r"[^a-z0-9._-]+", "-", socket.gethostname().lower()).strip("-._")[:64] or "edge"


class Sys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the broker publishes about itself, under $SYS/broker/, in [sys]."""

    # Between two updates; only what has changed is published.  0: nothing at all.
    interval_s: Annotated[int, Meta(ge=0, le=86_400)] = 10


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The page for a Prometheus server, in [metrics]."""

    listen: str = ""  # such as "127.0.0.1:9464", which serves /metrics; "": nobody


class Sessions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is remembered of clients beyond the life of the broker, in [sessions]."""

    # Sessions that outlast their connection, with subscriptions, queues and what is in flight, and wills that
    # wait.  false: they end with the broker.
    keep: bool = True
    # What they outlive: process: the broker; interval: a power cut too, but for what one sync_interval_ms
    # brings; disk: the journal is synced at once.  Not set: as the most durable stream.
    durability: Literal["process", "interval", "disk"] | None = None
    # Memory for what happens between two checkpoints: 4 bytes for each session that a message waits for, and
    # 16 for each delivery.
    journal_bytes: Annotated[
        int, Meta(ge=MIB, le=GIB, description="a power of two; it has to fit in memory")
    ] = 4 * MIB


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of it.  `stream` always ends with the stream "default", which takes what no other does."""

    # Records are known by it for ever, so a fleet gives every edge its own.
    edge_id: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z",
            description="write 1 to 64 of A-Z, a-z, 0-9, . - and _, a letter or digit first",
        ),
    ] = field(default_factory=host_edge_id)
    runtime_dir: Path = field(default_factory=default_runtime_dir)  # rings and sockets: memory
    state_dir: Path = field(default_factory=default_state_dir)  # log, checkpoints, epochs: disk
    listener: tuple[Listener, ...] = (Listener(),)
    limits: Limits = Limits()
    quota: Quota = Quota()
    auth: Auth = Auth()
    sys: Sys = Sys()
    metrics: Metrics = Metrics()
    sessions: Sessions = Sessions()
    stream: tuple[Stream, ...] = (Stream(name=DEFAULT_STREAM, topics=("#",)),)
    log: Log = Log()
    zmq: Zmq = Zmq()
    consumers: Consumers = Consumers()
    local: Local = Local()
    producer: tuple[Producer, ...] = ()
    bridge: tuple[Bridge, ...] = ()

    def __post_init__(self) -> None:
        for name in ("runtime_dir", "state_dir"):  # a str will do, of programs that embed the broker
            msgspec.structs.force_setattr(self, name, Path(getattr(self, name)))

    @property
    def packet_max_bytes(self) -> int:
        """The longest MQTT packet."""
        return longest_packet_bytes(self)

    @property
    def log_directory(self) -> Path:
        """Where the segment log is."""
        return self.log.directory or self.state_dir / "log"

    @property
    def zmq_endpoint(self) -> str:
        """Where the ZeroMQ publisher binds."""
        return self.zmq.endpoint or f"ipc://{self.runtime_dir / 'zmq.sock'}"

    @property
    def consumers_endpoint(self) -> str:
        """Where consumers are served."""
        return self.consumers.endpoint or f"ipc://{self.runtime_dir / 'consumers.sock'}"


def load(file: StrPath) -> Config:
    """The configuration in `file`.  Raises ConfigError with every mistake in it."""
    file = Path(file)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{file}:1: file: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{file}:1: file: byte {error.start} is not UTF-8, which TOML must be"]) from error
    return parse(text, name=str(file), base=file.parent)


def parse(text: str, *, name: str = "brim.toml", base: Path = Path()) -> Config:
    """The configuration that `text` says; `name` is what messages call it, relative paths begin at `base`."""
    problems = Problems(name)
    config = read_struct(Config, read_toml(text, problems), problems, base.absolute())
    if all(stream.name != DEFAULT_STREAM for stream in config.stream):
        rest = Stream(name=DEFAULT_STREAM, topics=("#",))
        config = msgspec.structs.replace(config, stream=(*config.stream, rest))
    return _ruled(config, problems)


def overridden(config: Config, given: Mapping[str, Any], name: str) -> Config:
    """`config` with the values of `given`, for which the rules of the file hold.

    Keys are those of [[listener]] (of the first one) and of the file itself; `name` is what messages call
    it.  Raises ConfigError.
    """
    problems = Problems(name)
    first = config.listener[0] if config.listener else Listener()
    listener = {key: value for key, value in given.items() if key in {"host", "port"}}
    values = read_values(Listener, listener, problems, Path.cwd(), ("listener", 0))
    changes = read_values(Config, {k: v for k, v in given.items() if k not in listener}, problems, Path.cwd())
    if values:
        changed = msgspec.structs.replace(first, **values)
        changes["listener"] = (changed, *config.listener[1:])
    return _ruled(msgspec.structs.replace(config, **changes), problems)


def checked(config: Config, name: str) -> Config:
    """`config`, which was made by hand or changed by `name`.  Raises ConfigError if it breaks a rule."""
    return _ruled(config, Problems(name))


def _ruled(config: Config, problems: Problems) -> Config:
    for rule in RULES:
        rule(config, problems)
    if messages := problems.messages():
        raise ConfigError(messages)
    return config
