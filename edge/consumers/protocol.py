"""Consumer protocol: the messages of the consumers' endpoint, a ZeroMQ ROUTER, for both sides.

A DEALER sends one message per request, and gets one answer for each, not always in the order of the requests:
`id`, which the client chooses, is in both.

    frame 0      the request or answer: a msgpack map with "op"
    frames 1..   bytes: the payloads of `publish`, one each; the records of `fetched` and `records`, one frame
                 for each batch, in the form of the ring: ringbuf/c/base/record.h. Each has its offset; the
                 epoch of the batch is the seed of the checksums

A group has one set of filters: a member with other filters is refused while the group has members. In a group
without members the next one to join sets new filters. The group keeps its progress: records that it passed
over do not come again. A frame of `fetched` has only records that match. The broker marks records that match
no filter as done. A filter "#" matches every record.

    request      answer      effect
    join         joined      become a member of a group; the group is created if necessary
    heartbeat    alive       stay a member; any other request that names the member has the same effect
    leave        done        stop being a member; unacknowledged records go to others at once
    fetch        fetched     records, as soon as there are some, otherwise nothing after max_wait_ms; and the
                             generation of the group
    commit       acked       everything below an offset is done (ordered groups)
    ack          acked       runs of records are done, in any order: those of the frame, or, unless the batch
                             has `again`, the whole range that it covers
    nack         acked       deliver runs of records again, not before delay_ms; `counts` false: that was not
                             a failed try (ordered groups: with all records behind them)
    rings        ring_list   the rings that may hold records for some topic filters
    read         records     records from an offset, a time, or the oldest on; without a group or any state
    publish      published   store messages, as if a client had published them; answered as PUBACK is: at
                             "disk" when the log has synced them, at "upstream" when the sinks have them
    groups       group_list  every group, or one: members, rings, lag
    set          done        set the lease, tries, back-off or speed of a group, also while it has members
    reset        done        set the offsets of a group that has no members
    forget       done        remove a group that has no members

Any request may be answered by `failed`, with a `code` for programs:

    malformed    not a request; `id` is 0 if it was unreadable
    refused      valid, but not done; `hint` has the remedy
    unknown      no such group, ring or member: a member joins again
    fenced       the member has lost this partition: its acknowledgement comes too late
    full         a limit is reached; try again later

`acked` has the number of records that count, the number that do not, and the refused runs. An acknowledgement
counts for records that the member has, that wait to come again, or that it did before (same `instance`). It
does not count for records that another member has or did meanwhile, for dead letters, and for records that
were never delivered. Records that match no filter are in neither number.

A group with a speed replays: `fetched` has new records when they are due. The broker has one clock for the
group, whatever its members are. It begins at the oldest record that was not delivered, and adds the speed in
seconds each second. A record is due when the clock has reached its time, or the present. Records that come
again are due.

`acked` is sent when the acknowledgement is as durable as the records: it survives the death of the broker.
It survives a power cut at durability "disk", and at "interval" and "upstream" after the next sync.

Rule for change: see edge.rpc.protocol.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from edge.consumers.delivery_settings import NO_SETTINGS, DeliverySettings, SettingInfo, SettingName
from edge.consumers.groups import Mode
from edge.rpc import protocol as rpc

VERSION: Final = 2
REQUEST_MAX_BYTES: Final = 1 << 20  # of frame 0
FILTERS_MAX: Final = 256
FILTERS_MAX_BYTES: Final = 64 << 10  # of one group or request, together
RINGS_MAX: Final = 256  # of one reset
BATCH_MAX_BYTES: Final = 64 << 20  # of one fetch or read
RUNS_MAX: Final = 65_536  # of one ack
SESSION_MIN_S: Final = 1
SESSION_MAX_S: Final = 3_600
IN_FLIGHT_MAX: Final = 100_000_000  # as consumers.records_max
PRIORITY_MAX: Final = 1_000
NACK_RUNS_MAX: Final = 4_096
LETTERS_MAX: Final = 1_024  # of one publish

StartWord = Literal["oldest", "latest", "offset", "time"]
Code = Literal["malformed", "refused", "unknown", "fenced", "full"]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
GROUP_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"  # topics of dead letters contain the name
GroupName = Annotated[str, Meta(pattern=GROUP_PATTERN)]
NUMBER_MAX: Final = (1 << 63) - 1
U64 = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
U32 = Annotated[int, Meta(ge=0, lt=1 << 32)]
Run = tuple[U64, Annotated[int, Meta(ge=1, lt=1 << 40)]]  # offset, count
DelayMs = Annotated[int, Meta(ge=0, le=7 * 86_400_000)]


class Message(rpc.Message, frozen=True, omit_defaults=True):
    """Base of all messages of this protocol."""

    id: U64


class RequestMessage(Message, frozen=True, omit_defaults=True):
    """Base of all requests."""

    version: int


class Join(RequestMessage, frozen=True):
    """Request to become a member.

    `start`, `start_value`: the first record of a group in rings without progress, as `to` and `value` of
    reset. `name` is shown to people. `instance`: a join with the same one, other than "", replaces the
    earlier member. `settings`: delivery settings of the group; a value other than that of another member is
    refused. `in_flight_max`: most records that the member has without an acknowledgement; fetches wait
    meanwhile; 0: no limit. `priority`: in an ordered group the members with the highest one share the
    partitions; in a queue the waiting fetch with the highest one is first. One connection has at most 64
    members, and all together have 4,096. One user, address or key has at most three times as many members as
    are free, and as many groups; the broker's own user and root have no such limit.
    """

    group: GroupName
    filters: Annotated[tuple[str, ...], Meta(min_length=1, max_length=FILTERS_MAX)]
    mode: Mode = "ordered"
    start: StartWord = "latest"
    session_ms: Annotated[int, Meta(ge=SESSION_MIN_S * 1000, le=SESSION_MAX_S * 1000)] = 10_000
    name: Annotated[str, Meta(max_length=256)] = ""
    instance: Annotated[str, Meta(max_length=64)] = ""
    settings: DeliverySettings = NO_SETTINGS
    start_value: U64 = 0
    in_flight_max: Annotated[int, Meta(ge=0, le=IN_FLIGHT_MAX)] = 0
    priority: Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)] = 0


class OfMember(RequestMessage, frozen=True):
    """Base of the requests of a member; each keeps it in its group."""

    group: GroupName
    member: Name


class Heartbeat(OfMember, frozen=True):
    """Request to stay a member. `working`: the member still processes its records; their
    leases start again.
    """

    working: bool = False


class Leave(OfMember, frozen=True):
    """Request to stop being a member."""


class Fetch(OfMember, frozen=True):
    """Request for about `max_bytes` of records, at least one if there is one, and at most `max_records`
    unless that is 0.
    """

    max_bytes: Annotated[int, Meta(ge=1, le=BATCH_MAX_BYTES)] = 1 << 20
    max_wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 500
    max_records: Annotated[int, Meta(ge=0, le=IN_FLIGHT_MAX)] = 0


class Acknowledgement(OfMember, frozen=True):
    """Base of the requests about delivered records. `generation`: of the answer with the records."""

    generation: U64
    ring: Name
    epoch: U32


class Commit(Acknowledgement, frozen=True):
    """Request to acknowledge everything below `offset`."""

    offset: U64


class Ack(Acknowledgement, frozen=True):
    """Request to acknowledge runs (offset, count)."""

    runs: Annotated[tuple[Run, ...], Meta(max_length=RUNS_MAX)]


class Nack(Acknowledgement, frozen=True):
    """Request to deliver runs again. `cause` is stored with records that become dead letters."""

    runs: Annotated[tuple[Run, ...], Meta(max_length=NACK_RUNS_MAX)]
    delay_ms: DelayMs | None = None  # None: a time that grows with each try
    cause: Annotated[str, Meta(max_length=1_024)] = ""
    counts: bool = True


class Rings(RequestMessage, frozen=True):
    """Request for the rings that may hold records for the filters."""

    filters: Annotated[tuple[str, ...], Meta(min_length=1, max_length=FILTERS_MAX)]


class Read(RequestMessage, frozen=True):
    """Request for records from `offset` of `epoch` on, or from `time_ns`, or from the oldest record on, that
    match one of the filters; (): all. At the end of the ring the broker waits up to `max_wait_ms`.
    """

    ring: Name
    epoch: U32 | None = None
    offset: U64 | None = None
    time_ns: U64 | None = None
    max_bytes: Annotated[int, Meta(ge=1, le=BATCH_MAX_BYTES)] = 1 << 20
    max_wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    filters: Annotated[tuple[str, ...], Meta(max_length=FILTERS_MAX)] = ()


class Letter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message to publish; a frame has its payload. `not_before_ns`: consumers get it from then on."""

    topic: str
    qos: Annotated[int, Meta(ge=0, le=2)] = 0
    retain: bool = False
    user: tuple[tuple[str, str], ...] = ()  # user properties
    not_before_ns: U64 | None = None


class Publish(RequestMessage, frozen=True):
    """Request to store messages. One payload frame for each letter follows."""

    letters: Annotated[tuple[Letter, ...], Meta(min_length=1, max_length=LETTERS_MAX)]


class Groups(RequestMessage, frozen=True):
    """Request for the state of groups. `group` "": all."""

    group: str = ""


class SetGroup(RequestMessage, frozen=True, tag="set"):
    """Request to set an operator's delivery settings. `clear`: settings that lose the operator's value."""

    group: GroupName
    settings: DeliverySettings = NO_SETTINGS
    clear: tuple[SettingName, ...] = ()


class Reset(RequestMessage, frozen=True):
    """Request to set offsets. `rings` (): all of the group. `value`: the offset, or the time in ns since
    1970.
    """

    group: GroupName
    to: StartWord
    value: U64 = 0
    rings: Annotated[tuple[Name, ...], Meta(max_length=RINGS_MAX)] = ()


class Forget(RequestMessage, frozen=True):
    """Request to remove a group."""

    group: GroupName


Request = (
    Join
    | Heartbeat
    | Leave
    | Fetch
    | Commit
    | Ack
    | Nack
    | Rings
    | Read
    | Publish
    | Groups
    | SetGroup
    | Reset
    | Forget
)


class Joined(Message, frozen=True):
    """Answer to join. `member` identifies the member in later requests."""

    member: str
    generation: int
    heartbeat_ms: int
    lease_ms: int
    rings: tuple[str, ...]


class Alive(Message, frozen=True):
    """Current partitions of the member."""

    generation: int
    rings: tuple[str, ...]


class Done(Message, frozen=True):
    """Success, without further data."""


class BatchInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A frame of ascending records: all that match in the range of `count` offsets from `offset` on.

    `again`: delivered before; offsets of the range that are not in the frame may belong to other members.
    """

    ring: str
    epoch: int
    offset: int
    count: int
    tries: int = 0  # number of failed deliveries
    again: bool = False


class Fetched(Message, frozen=True):
    """Answer to fetch. One frame of records for each batch follows."""

    generation: int
    batches: tuple[BatchInfo, ...] = ()


class Acked(Message, frozen=True):
    """Numbers of accepted and refused records, and the refused runs (offset, count): ascending, disjoint."""

    accepted: int
    refused: int = 0
    refused_runs: tuple[tuple[int, int], ...] = ()


class RingInfo(msgspec.Struct, frozen=True):
    """A ring: its oldest record in memory, and the offset of the next one."""

    name: str
    stream: str
    epoch: int
    oldest_offset: int
    end_offset: int


class RingList(Message, frozen=True, tag="ring_list"):
    """Rings that may hold records."""

    rings: tuple[RingInfo, ...]


class Records(Message, frozen=True):
    """Answer to read. The frame of a batch follows. next_*: where to continue; records before it that are not
    in the frame match no filter, or are `lost`.

    `lost`: number of records that are gone, or invalid, between the request's offset and next_offset.
    """

    next_epoch: int
    next_offset: int
    batch: BatchInfo | None = None
    lost: int = 0


class Published(Message, frozen=True):
    """Number of stored messages. `full`: numbers, from 0, of letters without room in a ring or its log.

    `refused`: numbers of letters with an invalid topic, too large for a record, or whose records a sink has
    lost.
    """

    stored: int
    full: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()


class MemberInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member of a group."""

    member: str  # the first characters of its id
    name: str
    rings: tuple[str, ...]
    in_flight: int
    priority: int = 0
    in_flight_max: int = 0  # 0: no limit
    owner: str = ""  # user, address or key that it counts for; "": the broker's user, or root


class PlaceInfo(msgspec.Struct, frozen=True):
    """Progress of a group in a ring."""

    ring: str
    epoch: int
    floor: int  # everything below it is done
    done_above: int
    end_offset: int
    lag: int
    in_flight: int
    owner: str  # as MemberInfo.member, or ""
    committed_ns: int  # wall clock of the last change, 0: never
    counts: dict[str, int]


class GroupInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """State of a group."""

    name: str
    mode: Mode
    filters: tuple[str, ...]
    lag: int
    members: tuple[MemberInfo, ...]
    places: tuple[PlaceInfo, ...]
    settings: dict[SettingName, SettingInfo] = {}
    owner: str = ""  # of the member that created it


class GroupList(Message, frozen=True, tag="group_list"):
    """Groups, and counters of the endpoint since its start."""

    groups: tuple[GroupInfo, ...]
    counts: dict[str, int]


class Failed(Message, frozen=True):
    """Failure, with its reason and a remedy."""

    error: str
    code: Code = "refused"
    hint: str = ""


class NotDone(Exception):
    """A request that was not done; becomes Failed, with `code` and `hint`."""

    def __init__(self, error: str, code: Code, hint: str = "") -> None:
        super().__init__(error)
        self.code: Code = code
        self.hint = hint


Answer = Joined | Alive | Done | Fetched | Acked | RingList | Records | Published | GroupList | Failed

PROTOCOL: Final = rpc.Protocol("broker", VERSION, Request, Answer, request_max_bytes=REQUEST_MAX_BYTES)
