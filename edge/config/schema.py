"""Settings of the broker: type, default, range and meaning of every key of brim.toml.

Owns the meaning of the configuration file and the relations between settings. Never starts anything, and
looks at the machine only for default directories and the host name; the libraries take values, not these.
`brim run` needs no file: Config() is a working broker on 127.0.0.1:1883.

Sizes are bytes, and durations have the unit that ends their key; in the file a string with a unit, such as
"64 MiB" or "7 d", does as well (edge/config/units.py). Relative paths are relative to the file.

The string below a key is its meaning: docs/reference/configuration.md is made of it (`./dev docs`).
"""

from __future__ import annotations

import re
import socket
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from edge.config.directories import default_runtime_dir, default_state_dir, instance, is_socket_file
from edge.config.limits import DefaultSize, Limits
from edge.config.listener import Listener, Tls
from edge.config.quota import Quota
from edge.config.tenant import Tenant

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

RECORD_OVERHEAD_BYTES = 64  # header, padding to 8 and to 32
RING_SHARE = 4  # no more than this part of a ring waits for an interval's sync
DELAY_LIMIT_S = 10 * 365 * 86_400  # highest delay_max_s
RECORDS_PER_RING = 4  # a record is at most a quarter of its ring
PACKET_USUAL_BYTES = 16 << 20  # default maximum: each connection may buffer one such packet

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
Percent = Annotated[int, Meta(ge=1, le=101, description="percent of the disk, 101: never")]
Uid = Annotated[int, Meta(ge=0, le=(1 << 32) - 2, description="a number, as `id -u NAME` prints it")]


class AckGate(IntEnum):
    """Event that an acknowledgement waits for. The numbers are MQ_GATE_* of ringbuf/c/mqtt/mqtt_api.h."""

    NONE = 0  # the record is committed
    DURABLE = 1  # the log has synced the record
    UPSTREAM = 2  # the sinks of all bridges that drain the ring have the record


class Durability(StrEnum):
    """Event that PUBACK waits for, and use of the log; stream.durability describes each."""

    PROCESS = "process"
    INTERVAL = "interval"
    DISK = "disk"
    UPSTREAM = "upstream"

    @property
    def is_logged(self) -> bool:
        """True if the log gets every record."""
        return self is not Durability.PROCESS

    @property
    def sync_mode(self) -> Literal["interval", "disk"]:
        """disk: the log syncs after each write; interval: at least every sync_interval_ms.

        Publishers of UPSTREAM wait for the sink, not for the log. PROCESS has no log, so it has no mode.
        """
        assert self.is_logged
        return "disk" if self is Durability.DISK else "interval"

    @property
    def ack_gate(self) -> AckGate:
        """Event that acknowledgements wait for."""
        return _ACK_GATES.get(self, AckGate.NONE)


_ACK_GATES = {Durability.DISK: AckGate.DURABLE, Durability.UPSTREAM: AckGate.UPSTREAM}


class Stream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Class of topics that share rings and settings, in [[stream]].

    A topic belongs to the first stream that has a filter for it.  Topics without a stream belong to the
    stream "default", which always exists.
    """

    name: Name
    """Name of the stream; part of the names of its rings, files and object keys."""
    topics: tuple[Filter, ...]
    """Topic filters of the stream."""
    partitions: Annotated[int, Meta(ge=1, le=64, description="one ring each")] = 1
    """Partitions of the stream. Order holds within a partition, and a topic always goes to the same
    partition."""
    ring_bytes: RingBytes = DefaultSize(64 * MIB)
    """Size of the ring of one partition. 64 MiB hold 25 s of 10,000 messages of 200 bytes a second. Not
    set: smaller where runtime_dir has less room, or where all rings would take more than a quarter of the
    memory. A record is at most a quarter of it."""
    when_full: Literal["overwrite", "block", "reject"] = "overwrite"
    """Effect of a full ring on publishers. overwrite: slow readers lose records (counted per reader); only
    the log can slow publishers down.  block: the publisher waits for blocking readers.  reject: the message
    is refused."""
    queue_timeout_ms: Milliseconds = 200
    """Longest wait of a publisher for a full ring before its message is rejected; choose it well below the
    timeouts of clients."""
    durability: Durability = Durability.PROCESS
    """Event that PUBACK waits for. process: the record is in the ring, which survives the death of the
    broker. interval: as process; the log follows, and is synced every sync_interval_ms. disk: the log has
    synced the record. upstream: the sinks of all bridges that drain the stream have the record; the log is
    written as for interval."""
    visible: Literal["commit", "durable"] = "commit"
    """Time at which subscribers receive a record. commit: when it is in the ring. durable: after the log has
    synced it. A power cut then cannot undo a record that a subscriber has received."""
    isolated: bool = False
    """Give each ring of the stream a log of its own, in a directory with its name."""
    sync_interval_ms: Milliseconds = 1_000
    """Longest time between two syncs of the log with durability "interval": the time that a power cut may
    cost."""
    sync_bytes: Annotated[int, Meta(ge=4 * KIB, le=GIB)] | None = None
    """Bytes written to the log after which it is synced before sync_interval_ms has passed. Not set: 1 MiB,
    or a quarter of a ring that is smaller than 4 MiB."""
    retain_bytes: Annotated[int, Meta(ge=0, le=1 << 50)] = 0
    """Bytes of the stream that the log keeps at least. A segment is deleted when no stream with records in
    it needs it. If retain_bytes and retain_s are both 0, the rules of [log] hold."""
    retain_s: Annotated[int, Meta(ge=0, le=1 << 32)] = 0
    """Age up to which the log keeps records of the stream. 0: no limit by age."""
    discard: Literal["old", "new"] = "old"
    """Effect of reaching retain_bytes. old: the oldest records are deleted. new: publishers are refused
    until there is room again: by age, or because all bridges and consumers of the stream have read the oldest
    segment."""
    hold_bytes: Annotated[int, Meta(ge=0, le=1 << 50)] = GIB
    """Bytes kept beyond the retention rules for bridges, consumers and MQTT sessions that have not read them.
    Beyond it the oldest records are deleted, and those readers lose them."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "durability", Durability(self.durability))  # str is accepted

    @property
    def synced_after_bytes(self) -> int:
        """sync_bytes, or the value that suits the ring if it is not set."""
        return self.sync_bytes or min(MIB, self.ring_bytes // RING_SHARE)


class Plugin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Plug-in of amqtt that authenticates clients, filters topics or receives events, in [[auth.plugin]]."""

    path: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+\Z",
            description='write "package.module.Class", such as "amqtt.contrib.jwt.UserAuthJwtPlugin"',
        ),
    ] = field(name="class")
    """Class of the plug-in, by its full name."""
    options: dict[str, Any] = {}
    """Settings of the plug-in, as its own class Config names them."""


class Auth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Authentication of clients and permissions to publish and receive, in [auth].

    With a password file or a plug-in that authenticates, clients without a user name are refused, unless
    their listener has allow_anonymous = true or a plug-in accepts them.  SIGHUP reads both files again.
    """

    password_file: Path | None = None
    """File of users and password hashes, written by `brim passwd` or mosquitto_passwd."""
    acl_file: Path | None = None
    """File of permissions, in the format of Mosquitto's acl_file. Not set: every client may publish and
    receive everything."""
    check_retain_source: bool = True
    """Withhold a retained message while the rules do not let its publisher write to its topic. Checked at
    the start and each time the rules change."""
    plugin: tuple[Plugin, ...] = ()
    """Plug-ins, called in the order of the file."""

    @property
    def requires_login(self) -> bool:
        """True if clients may have to log in."""
        return self.password_file is not None or bool(self.plugin)


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Segment log, in [log]. Used by streams with a durability other than "process"."""

    directory: Path | None = None
    """Directory of the log. Not set: `log` in state_dir."""
    segment_bytes: Annotated[int, Meta(ge=MIB, le=4 * GIB)] = 64 * MIB
    """Size of a segment: the unit that retention deletes."""
    retain_bytes: Annotated[int, Meta(ge=0, le=1 << 50, description="0 keeps everything")] = 4 * GIB
    """Bytes of each log, all files together, after which its oldest segments are deleted, even if the rules
    of streams would keep them."""
    retain_s: Annotated[int, Meta(ge=0, le=1 << 32)] = 0
    """Age up to which records are kept, of streams without a rule of their own. 0: no limit by age."""
    segment_age_s: Annotated[int, Meta(ge=0, le=1 << 32, description="0: only when it is full")] = 3_600
    """Age at which a segment is sealed. A segment that is not sealed is neither compressed nor deleted."""
    disk_warn_percent: Percent = 75
    """Use of the disk at which the broker logs a warning. Of a disk larger than 64 GiB only 64 GiB count,
    for this setting and the next two."""
    disk_delete_percent: Percent = 85
    """Use of the disk at which the oldest segments are deleted, even if retention rules would keep them."""
    disk_read_only_percent: Percent = 95
    """Use of the disk at which the log takes no more records."""
    archive: bool = False
    """Make each sealed segment a Parquet file of a tenth of its size. Archives are read like segments. Needs
    the extra `archive`."""
    scrub_bytes_per_s: Annotated[int, Meta(ge=0, le=1 << 40, description="0: never")] = 8 * MIB
    """Rate at which the broker reads the whole log again, to find damage while there are other copies."""
    scrub_interval_s: Annotated[int, Meta(ge=60, le=1 << 32)] = 7 * 86_400
    """Time between two such readings."""
    workers: Annotated[int, Meta(ge=1, le=16)] = 1
    """Logs that share the rings of all streams that are not isolated, each with a thread. More than one is
    faster where the directory is on several devices, or on a device that takes many requests at once."""
    direct: bool = True
    """Write whole blocks of the device past the page cache (O_DIRECT), where the file system allows it: less
    work for the processor and fewer bytes of wear on flash. Use false on a device that is slow at it."""


class Zmq(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """ZeroMQ publisher, in [zmq]."""

    enabled: bool = True
    """Publish records over ZeroMQ."""
    endpoint: str = ""
    """Endpoint that the publisher binds, ipc:// or tcp://. Empty: ipc://RUNTIME_DIR/zmq.sock."""
    send_high_water: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """Messages queued for one subscriber, with their payloads, in the memory of the broker: 10,000 messages
    of 1 MB take 10 GB. Lower it for large payloads. Beyond it messages are dropped and counted."""
    secret_key_file: Path | None = None
    """CURVE certificate of the broker with its secret key. Without it only loopback and ipc:// are
    allowed."""
    client_keys_dir: Path | None = None
    """Directory of the public CURVE certificates of clients that may subscribe."""


class Consumers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Named consumers and consumer groups over ZeroMQ, in [consumers].

    An endpoint that other machines reach needs the CURVE keys of [zmq]. If they are set, each tcp:// endpoint
    requires them. A socket file (ipc:///PATH) takes no keys: its mode, 0660, and that of its directory,
    0750 for the runtime directory, guard it.
    """

    enabled: bool = True
    """Serve consumers."""
    endpoint: str = ""
    """Endpoint that consumers connect to, ipc:// or tcp://. Empty:
    ipc://RUNTIME_DIR/consumers.sock."""
    lease_ms: Milliseconds = 30_000
    """Time that a consumer has for a record before it is delivered again, unless the consumer extends it."""
    tries_max: Annotated[int, Meta(ge=0, le=1_000, description="0: no limit")] = 5
    """Deliveries of a record after which it becomes a dead letter."""
    backoff_ms: Milliseconds = 100
    """Wait before the second delivery; doubled before each further delivery."""
    backoff_max_ms: Milliseconds = 60_000
    """Longest wait between two deliveries."""
    records_max: Annotated[int, Meta(ge=1, le=100_000_000)] = 1_000_000
    """Records of a partition between the first that a group has not acknowledged and the last that was
    delivered to it. Beyond it the group gets no further records of the partition."""
    dead_letter_topic: Annotated[
        str,
        Meta(pattern=r"^([^$+#/][^+#]{0,255})?\Z", description="a topic without wildcards and $"),
    ] = "dead"
    """Prefix of the topic of dead letters: {dead_letter_topic}/{group}/{topic}; for records of a tenant after
    its $tenant/NAME/. Empty: dead letters are dropped and counted."""
    groups_max: Annotated[int, Meta(ge=1, le=10_000)] = 256
    """Consumer groups. One user, address or key may have three times as many as are then free, the broker's
    own user and root all."""
    members_max: Annotated[int, Meta(ge=1, le=10_000)] = 256
    """Members of one group."""


class Delayed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Delayed messages, in [delayed].

    A message to $delayed/SECONDS/TOPIC is published to TOPIC after SECONDS. Until then it waits in an SQLite
    file, which a start of the broker reads.
    """

    enabled: bool = False
    """Accept delayed messages. false: clients may not publish to $delayed, as to any topic of the broker."""
    durability: Literal["process", "interval", "disk"] = "interval"
    """Failure that waiting messages survive. process: the death of the broker; the file is in runtime_dir.
    interval: also a power cut, except for the messages of the last second; the file is in state_dir. disk:
    also a power cut; PUBACK waits for the sync of the file."""
    delay_max_s: Annotated[int, Meta(ge=1, le=DELAY_LIMIT_S)] = 30 * 86_400
    """Longest delay. A message with a longer delay is refused (0x90, Topic Name Invalid)."""
    messages_max: Annotated[int, Meta(ge=1, le=100_000_000)] = 1_000_000
    """Highest number of waiting messages. At the limit publishers wait, and are refused after 200 ms (0x97,
    Quota Exceeded)."""
    messages_max_bytes: Annotated[int, Meta(ge=MIB, le=1 << 40)] = GIB
    """Highest sum of bytes of waiting messages: topic, payload, properties, and 64 for each message. The file
    may be 1.5 times as large."""


class Local(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Processes of this machine that use shared memory, in [local]."""

    connections_max: Annotated[int, Meta(ge=1, le=4096)] = 128
    """Connections to the control socket. The default is twice the 64 reader slots of a ring."""
    blocking_reader_uids: tuple[Uid, ...] = ()
    """Users, in addition to the broker's own, whose readers may slow publishers down, on streams with
    when_full "block" or "reject"."""
    producers_max: Annotated[int, Meta(ge=0, le=64)] = 16
    """Producer rings that processes of the broker's own user may create without a [[producer]] of their
    name."""


class Producer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Process of this machine that writes a ring of its own, in [[producer]]."""

    name: Name
    """Name of the producer; its ring is called "stream@producer"."""
    stream: Name
    """Stream whose settings hold for the records of the producer."""
    ring_bytes: RingBytes = 64 * MIB
    """Size of the ring of the producer. A record is at most a quarter of it."""
    uids: tuple[Uid, ...] = ()
    """Users, in addition to the broker's own, that may be this producer."""


class Bridge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Drain of records to files, an object store or another broker, in [[bridge]]."""

    name: Name
    """Name of the bridge; its checkpoint file has this name."""
    to: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9+.-]*:", description="a URL, such as file:///srv/lake")]
    """URL of the sink."""
    in_broker: bool = True
    """Run the bridge in the broker. false: `brim bridge run NAME` runs it as a process of its own."""
    streams: tuple[Name, ...] = ()
    """Streams to drain, with their local producers. Empty: all streams."""
    options: dict[str, str | bool | int | float] = {}
    """Settings of the sink, such as region or endpoint. Files among them need absolute paths: a relative one
    is relative to the working directory of the process."""
    start: Literal["oldest", "latest"] = "oldest"
    """First record of a partition that was never drained: the oldest one, or the next one that arrives;
    earlier records are then counted as skipped."""
    file_bytes: Annotated[int, Meta(ge=4 * KIB, le=GIB)] = 8 * MIB
    """Size at which a drained file is complete. Larger files cost less for each record and arrive later."""
    file_records: Annotated[int, Meta(ge=1, le=1 << 30)] = 1_000_000
    """Number of records at which a drained file is complete."""
    linger_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 1_000
    """Wait of the oldest record at which a drained file is complete, whatever its size."""
    compress: Literal["none", "zstd"] = "none"
    """Compression of drained files. "zstd" needs the extra `zstd` before Python 3.14."""
    window: Annotated[int, Meta(ge=1, le=64)] = 4
    """Drained files or record batches in flight to the sink; each takes file_bytes of memory."""
    resend_max_records: Annotated[int, Meta(ge=1, le=1 << 30)] = 50_000
    """Records that Kafka and MQTT sinks may get twice after a crash of the bridge. A smaller value costs
    throughput: the checkpoint is saved at least once for each such window."""
    resend_max_bytes: Annotated[int, Meta(ge=4 * KIB, le=GIB)] = 8 * MIB
    """Bytes that Kafka and MQTT sinks may get twice after a crash of the bridge."""
    rate_bytes_s: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    """Highest rate to the sink, on average over a second. 0: as fast as the sink accepts."""
    merge_after_s: Annotated[int, Meta(ge=0, le=1 << 31)] = 0
    """Time after the end of a day (UTC) at which the small files of that day are merged into large ones in a
    directory or an object store, such as 86400. The bridge then reads, and removes files there. 0: never,
    because readers of an earlier Brim do not know merged files, and other engines may see records twice for a
    moment."""
    merge_bytes: Annotated[int, Meta(ge=MIB, le=GIB)] = 64 * MIB
    """Size of a merged file; a merger takes about three times this in memory. Files above half of it stay."""
    merge_keep_s: Annotated[int, Meta(ge=60, le=1 << 31)] = 86_400
    """Time for which replaced files stay next to a merged one, for queries that have begun."""
    merge_rate_bytes_s: Annotated[int, Meta(ge=64 * KIB, le=1 << 40)] = 8 * MIB
    """Highest rate of merging, of bytes read and written together, in addition to rate_bytes_s."""
    live_share: Annotated[float, Meta(ge=0, le=0.95)] = 0.7
    """Share of the bytes for new records while a backlog is drained (the oldest record has waited for ten
    seconds). 0: strictly in order."""
    priorities: dict[Name, int] = {}
    """Priority of streams by name. Streams with a higher number are drained first; the default is 0."""
    topics: tuple[Filter, ...] = ()
    """Topic filters of the records to send. Empty: all topics. Only for sinks of records (Kafka, MQTT), as
    the next three settings."""
    topics_not: tuple[Filter, ...] = ()
    """Topic filters of records to leave out."""
    remap: dict[str, str] = {}
    """New prefixes of topics by old ones; the longest matching prefix is replaced."""
    transform: str = ""
    """Function that changes or drops records, as "package.module:function"."""
    stall_s: Annotated[int, Meta(ge=1, le=1 << 31)] = 300
    """Time without progress, while records wait, after which the bridge is reported as stalled."""
    backoff_max_ms: Annotated[int, Meta(ge=500, le=3_600_000)] = 60_000
    """Longest wait between two tries while the sink is unavailable."""


def host_edge_id() -> str:
    """The host name, with -<instance>; other characters than a-z, 0-9, . _ and - are replaced by -."""
    name = "-".join(filter(None, (socket.gethostname(), instance())))
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:64] or "edge"


class Sys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Statistics of the broker on the topics under $SYS/broker/, in [sys]."""

    interval_s: Annotated[int, Meta(ge=0, le=86_400)] = 10
    """Time between two updates; only changed values are published. 0: no $SYS topics."""


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """HTTP pages for a Prometheus server and for health checks, in [metrics]."""

    listen: str = ""
    """Address and port that serve /metrics, /healthz and /readyz, such as "127.0.0.1:9464". An address that
    other machines reach needs token_file, or [metrics.tls] with client_ca_file. Empty: no pages."""
    token_file: Path | None = None
    """File whose first line is the bearer token that /metrics requires, at least 16 characters. /healthz and
    /readyz give reasons only to requests with the token. A changed file is read again."""
    tls: Tls | None = None
    """TLS of the pages. With client_ca_file only clients with a certificate connect (mutual TLS). The files
    are read at the start."""


class Web(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Web console and management API, in [web]. Needs the extra `web`.

    The console is a process of its own, which the broker starts.  Its actions are in the audit log.
    """

    listen: str = ""
    """Address and port of the pages, such as "127.0.0.1:8080". An address that other machines reach needs
    users_file and [web.tls]. Empty: no console."""
    users_file: Path | None = None
    """File of users and password hashes, written by `brim passwd`. A changed file is read again. Not set:
    every program of this machine reads the pages, and no request changes anything."""
    admins: tuple[str, ...] = ()
    """Users who may do everything, also what loses data: skip records, reset consumer groups, reload."""
    operators: tuple[str, ...] = ()
    """Users who may disconnect clients, remove sessions and retained messages, publish, pause and resume
    bridges. All other users only read."""
    host_names: tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,253}\Z")], ...] = ()
    """Host names of the console, in addition to its address and the name of the machine, such as the name of
    a proxy with TLS. Needs users_file."""
    tls: Tls | None = None
    """TLS of the pages. The files are read at the start."""


class Sessions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sessions of clients beyond the life of the broker, in [sessions]."""

    keep: bool = True
    """Keep sessions that outlast their connection over a restart of the broker: subscriptions, queues,
    messages in flight and delayed wills. false: these sessions end with the broker."""
    durability: Literal["process", "interval", "disk"] | None = None
    """Failure that sessions survive. process: the death of the broker. interval: also a power cut, except
    for the changes of the last sync_interval_ms.  disk: also a power cut; the session journal is synced at
    once. Not set: that of the most durable stream."""
    journal_bytes: Annotated[
        int, Meta(ge=MIB, le=GIB, description="a power of two; it has to fit in memory")
    ] = 4 * MIB
    """Memory for changes of sessions between two snapshots: 4 bytes for each session that a message waits
    for, and 16 bytes for each delivery."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the broker, in the TOML file of `brim run --config FILE`.

    Every setting has a default: without a file the broker serves 127.0.0.1:1883.  Relative paths are relative
    to the directory of the file.  `brim check FILE` reports every mistake with its line.  These keys stand at
    the top of the file, before the first section:
    """

    edge_id: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z",
            description="write 1 to 64 of A-Z, a-z, 0-9, . - and _, a letter or digit first",
        ),
    ] = field(default_factory=host_edge_id)
    """Name of this broker in drained records, for ever. Give every broker of a fleet its own name."""
    runtime_dir: Path = field(default_factory=default_runtime_dir)
    """Directory of rings and sockets, in memory."""
    state_dir: Path = field(default_factory=default_state_dir)
    """Directory of log, sessions, checkpoints and epochs, on disk."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged. `brim run --log-level` has priority."""
    listener: tuple[Listener, ...] = (Listener(),)
    """MQTT ports. Not set: one on 127.0.0.1:1883."""
    limits: Limits = Limits()
    """Limits of clients."""
    quota: Quota = Quota()
    """Shares of one user or address in the tables of all clients."""
    auth: Auth = Auth()
    """Authentication and permissions."""
    tenant: tuple[Tenant, ...] = ()
    """Tenants: name spaces of clients that cannot reach each other."""
    sys: Sys = Sys()
    """Statistics on $SYS topics."""
    metrics: Metrics = Metrics()
    """Page for Prometheus."""
    web: Web = Web()
    """Web console."""
    sessions: Sessions = Sessions()
    """Sessions beyond the life of the broker."""
    stream: tuple[Stream, ...] = (Stream(name=DEFAULT_STREAM, topics=("#",)),)
    """Streams, in the order in which their filters are tried; "default", for all other topics, is always the
    last, wherever the file has it."""
    log: Log = Log()
    """Segment log."""
    zmq: Zmq = Zmq()
    """ZeroMQ publisher."""
    consumers: Consumers = Consumers()
    """Consumers and consumer groups."""
    delayed: Delayed = Delayed()
    """Delayed messages."""
    local: Local = Local()
    """Processes of this machine that use shared memory."""
    producer: tuple[Producer, ...] = ()
    """Processes of this machine that write rings of their own."""
    bridge: tuple[Bridge, ...] = ()
    """Bridges."""

    def __post_init__(self) -> None:
        for name in ("runtime_dir", "state_dir"):  # programs that embed the broker may pass a str
            msgspec.structs.force_setattr(self, name, Path(getattr(self, name)))

    @property
    def packet_max_bytes(self) -> int:
        """limits.packet_max_bytes, or, if not set, the longest packet that every ring can store with a topic.

        The topic may come from an earlier packet, if this one has a topic alias.
        """
        limits = self.limits
        if limits.packet_max_bytes is not None:
            return limits.packet_max_bytes
        room = min(stream.ring_bytes for stream in self.stream) // RECORDS_PER_RING - RECORD_OVERHEAD_BYTES
        return min(PACKET_USUAL_BYTES, max(room - limits.topic_max_bytes, room // 2))

    @property
    def sessions_durability(self) -> Durability:
        """Durability of sessions: that of [sessions], otherwise that of the most durable stream."""
        if self.sessions.durability is not None:
            return Durability(self.sessions.durability)
        modes = {stream.durability.sync_mode for stream in self.stream if stream.durability.is_logged}
        return Durability.DISK if "disk" in modes else Durability("interval" if modes else "process")

    def bridges_of(self, stream: str) -> tuple[Bridge, ...]:
        """Bridges that drain a stream. Acknowledgements of durability UPSTREAM wait for all of them."""
        return tuple(bridge for bridge in self.bridge if not bridge.streams or stream in bridge.streams)

    @property
    def log_directory(self) -> Path:
        """Directory of the segment log."""
        return self.log.directory or self.state_dir / "log"

    @property
    def zmq_endpoint(self) -> str:
        """Endpoint of the ZeroMQ publisher."""
        return self.zmq.endpoint or f"ipc://{self.runtime_dir / 'zmq.sock'}"

    @property
    def consumers_endpoint(self) -> str:
        """Endpoint of consumers."""
        return self.consumers.endpoint or f"ipc://{self.runtime_dir / 'consumers.sock'}"

    @property
    def consumers_need_keys(self) -> bool:
        """True if consumers need CURVE keys: the broker has keys, and the endpoint is not a socket file."""
        return self.zmq.secret_key_file is not None and not is_socket_file(self.consumers_endpoint)
