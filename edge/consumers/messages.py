"""The consumers' endpoint, a ZeroMQ ROUTER: its messages, both sides of them.

A DEALER sends one message a request, and gets one for each, not always in the order of the requests: `id`,
which the asker chooses, is in both.

    frame 0      the request or answer: a msgpack map with "op"
    frames 1..   bytes: the payloads of `publish`, one each; the records of `fetched` and `records`, one frame
                 for each batch, as they lie in the ring: ringbuf/c/record.h.  Each has its offset; the epoch
                 of the batch is the seed of the checksums

A group has one set of filters: a member with other filters is refused while the group has members.  In a
group without members the next one to join sets new filters, and the group stays where it is: records that
it passed over do not come again.  A frame of `fetched` has only records that match.  The broker keeps that
records which match no filter are done.  A filter "#" matches every record.

    request      answer      what it does
    join         joined      become a member of a group; the group is made if need be
    heartbeat    alive       stay one; any other request that names the member does, too
    leave        done        be none any more; what is not acknowledged goes to others at once
    fetch        fetched     records, as soon as there are some, else nothing after max_wait_ms; and what the
                             member has lost meanwhile
    commit       acked       everything below an offset is done (ordered groups)
    ack          acked       runs of records are done, in any order: those of the frame, or, unless the batch
                             has `again`, all of the range that it covers
    nack         acked       runs of records are to come again, not before delay_ms; `counts` false: and that
                             was no try in vain (ordered groups: with all that is behind them)
    rings        ring_list   which rings may hold records for some topic filters
    read         records     records from an offset, a time, or the oldest on; no group, nothing remembered
    publish      published   store messages, as if a client had published them
    groups       group_list  every group, or one: members, rings, lag
    reset        done        put a group that has no members somewhere else
    forget       done        remove a group that has no members

Any request may be answered by `failed`, whose `code` programs go by:

    malformed    no request; `id` is 0 if not even that could be read
    refused      understood, and not done; `hint` says what to do
    unknown      no such group, ring or member: a member joins again
    fenced       the member has lost this partition: what it says of it comes too late
    full         a limit is reached; ask again later

`acked` says how many records count, how many do not, and which these are.  An acknowledgement counts for
records that the member has, that wait to come again, or that it did before (same `instance`); it does not for
records that another member has or did by now, for dead letters, and for records that were never handed out.
Records that match no filter are in no count.

`acked` comes when what it says survives as the records themselves do: the death of the broker, and, for
streams of durability "interval" and "disk", a power cut (after the next sync, or before the answer).

Rule for change: further ops, and further keys with defaults, are added freely; anything else raises VERSION,
which is in every request, and which the broker refuses by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from edge.consumers.groups import Mode
from edge.errors import ControlError

__all__ = [
    "FILTERS_MAX_BYTES", "REQUEST_MAX_BYTES", "RUNS_MAX", "VERSION", "Ack", "Acked", "Alive", "Answer",
    "BatchFacts", "Code", "Commit", "Done",
    "Failed", "Fetch", "Fetched", "Forget", "GroupFacts", "GroupList", "Groups", "Heartbeat", "Join",
    "Joined", "Leave", "Letter", "MemberFacts", "Nack", "PlaceFacts", "Publish", "Published", "Read",
    "Records", "Request", "Reset", "RingFacts", "RingList", "Rings", "decode_answer", "decode_request",
    "encode",
]  # fmt: skip

VERSION: Final = 2
REQUEST_MAX_BYTES: Final = 1 << 20  # of frame 0
FILTERS_MAX: Final = 256
FILTERS_MAX_BYTES: Final = 64 << 10  # of one group or request, together
RINGS_MAX: Final = 256  # of one reset
RUNS_MAX: Final = 65_536  # of one ack
NACK_RUNS_MAX: Final = 4_096
LETTERS_MAX: Final = 1_024  # of one publish

Code = Literal["malformed", "refused", "unknown", "fenced", "full"]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
# Dead letters go to topics with the group's name in them.
GroupName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
U64 = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
U32 = Annotated[int, Meta(ge=0, lt=1 << 32)]
Run = tuple[U64, Annotated[int, Meta(ge=1, lt=1 << 40)]]  # offset, count
DelayMs = Annotated[int, Meta(ge=0, le=7 * 86_400_000)]


class Message(msgspec.Struct, tag_field="op", tag=str.lower, frozen=True, omit_defaults=True):
    """Anything of this protocol."""

    id: U64


class Asked(Message, frozen=True, omit_defaults=True):
    """A request."""

    version: int


class Join(Asked, frozen=True):
    """`start`: where a group begins that has committed nothing.  `name` is for people.  `instance`: who joins
    again with the same one, other than "", takes its own place.
    """

    group: GroupName
    filters: Annotated[tuple[str, ...], Meta(min_length=1, max_length=FILTERS_MAX)]
    mode: Mode = "ordered"
    start: Literal["oldest", "latest"] = "latest"
    session_ms: Annotated[int, Meta(ge=1_000, le=3_600_000)] = 10_000
    name: Annotated[str, Meta(max_length=256)] = ""
    instance: Annotated[str, Meta(max_length=64)] = ""


class Heartbeat(Asked, frozen=True):
    """`working`: the member is still at what it has; its leases begin anew."""

    group: GroupName
    member: Name
    working: bool = False


class Leave(Asked, frozen=True):
    """See above."""

    group: GroupName
    member: Name


class Fetch(Asked, frozen=True):
    """About `max_bytes` of records, at least one if there is one."""

    group: GroupName
    member: Name
    max_bytes: Annotated[int, Meta(ge=1, le=64 << 20)] = 1 << 20
    max_wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 500


class Commit(Asked, frozen=True):
    """`generation`: of the answer that brought the records; and so below."""

    group: GroupName
    member: Name
    generation: U64
    ring: Name
    epoch: U32
    offset: U64


class Ack(Asked, frozen=True):
    """Runs are (offset, count)."""

    group: GroupName
    member: Name
    generation: U64
    ring: Name
    epoch: U32
    runs: Annotated[tuple[Run, ...], Meta(max_length=RUNS_MAX)]


class Nack(Asked, frozen=True):
    """`cause` is kept with records that end up as dead letters."""

    group: GroupName
    member: Name
    generation: U64
    ring: Name
    epoch: U32
    runs: Annotated[tuple[Run, ...], Meta(max_length=NACK_RUNS_MAX)]
    delay_ms: DelayMs | None = None  # None: longer each time
    cause: Annotated[str, Meta(max_length=1_024)] = ""
    counts: bool = True


class Rings(Asked, frozen=True):
    """See above."""

    filters: Annotated[tuple[str, ...], Meta(min_length=1, max_length=FILTERS_MAX)]


class Read(Asked, frozen=True):
    """From `offset` of `epoch`; or, without, from `time_ns`; or, without that, from the oldest record on."""

    ring: Name
    epoch: U32 | None = None
    offset: U64 | None = None
    time_ns: U64 | None = None
    max_bytes: Annotated[int, Meta(ge=1, le=64 << 20)] = 1 << 20
    max_wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0


class Letter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message to publish; its payload is a frame.  `not_before_ns`: consumers get it from then on."""

    topic: str
    qos: Annotated[int, Meta(ge=0, le=2)] = 0
    retain: bool = False
    user: tuple[tuple[str, str], ...] = ()  # user properties
    not_before_ns: U64 | None = None


class Publish(Asked, frozen=True):
    """As many payload frames follow."""

    letters: Annotated[tuple[Letter, ...], Meta(min_length=1, max_length=LETTERS_MAX)]


class Groups(Asked, frozen=True):
    """`group` "": all."""

    group: str = ""


class Reset(Asked, frozen=True):
    """`rings` (): all of the group.  `value`: the offset, or the time in ns since 1970."""

    group: GroupName
    to: Literal["oldest", "latest", "offset", "time"]
    value: U64 = 0
    rings: Annotated[tuple[Name, ...], Meta(max_length=RINGS_MAX)] = ()


class Forget(Asked, frozen=True):
    """See above."""

    group: GroupName


Request = (
    Join | Heartbeat | Leave | Fetch | Commit | Ack | Nack | Rings | Read | Publish | Groups | Reset | Forget
)


class Joined(Message, frozen=True):
    """`member` is what later requests name."""

    member: str
    generation: int
    heartbeat_ms: int
    lease_ms: int
    rings: tuple[str, ...]


class Alive(Message, frozen=True):
    """What the member has by now."""

    generation: int
    rings: tuple[str, ...]


class Done(Message, frozen=True):
    """Yes."""


class BatchFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """A frame of records, which rise, of the range of `count` offsets from `offset` on: all that match.

    `again`: handed out before; offsets of the range that the frame has not may be those of other members.
    """

    ring: str
    epoch: int
    offset: int
    count: int
    tries: int = 0  # how often they were handed out in vain
    again: bool = False


class Fetched(Message, frozen=True):
    """One frame of records for each batch."""

    generation: int
    batches: tuple[BatchFacts, ...] = ()


class Acked(Message, frozen=True):
    """Numbers of records that were accepted and refused, and the refused runs (offset, count): rising,
    disjoint.
    """

    accepted: int
    refused: int = 0
    refused_runs: tuple[tuple[int, int], ...] = ()


class RingFacts(msgspec.Struct, frozen=True):
    """A ring: its oldest record in memory, and what comes next."""

    name: str
    stream: str
    epoch: int
    oldest_offset: int
    end_offset: int


class RingList(Message, frozen=True, tag="ring_list"):
    """See above."""

    rings: tuple[RingFacts, ...]


class Records(Message, frozen=True):
    """With a batch, its frame follows.  Where to read on; `lost`: gone from there up to the batch."""

    next_epoch: int
    next_offset: int
    batch: BatchFacts | None = None
    lost: int = 0


class Published(Message, frozen=True):
    """How many were stored.  `full`: numbers, from 0, of letters for which a ring or its log had no room;
    `refused`: of those whose topics are none.
    """

    stored: int
    full: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()


class MemberFacts(msgspec.Struct, frozen=True):
    """Of a group."""

    member: str  # the first characters of its id
    name: str
    rings: tuple[str, ...]
    in_flight: int


class PlaceFacts(msgspec.Struct, frozen=True):
    """Of a group: how far it is in a ring."""

    ring: str
    epoch: int
    floor: int  # everything below it is done
    done_above: int
    end_offset: int
    lag: int
    in_flight: int
    owner: str  # as MemberFacts.member, or ""
    committed_ns: int  # wall clock of the last change, 0 for never
    counts: dict[str, int]


class GroupFacts(msgspec.Struct, frozen=True):
    """A group."""

    name: str
    mode: Mode
    filters: tuple[str, ...]
    lag: int
    members: tuple[MemberFacts, ...]
    places: tuple[PlaceFacts, ...]


class GroupList(Message, frozen=True, tag="group_list"):
    """Groups, and what the endpoint has counted since its start."""

    groups: tuple[GroupFacts, ...]
    counts: dict[str, int]


class Failed(Message, frozen=True):
    """No, and why, and what to do."""

    error: str
    code: Code = "refused"
    hint: str = ""


Answer = Joined | Alive | Done | Fetched | Acked | RingList | Records | Published | GroupList | Failed

encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(Request).decode
_decode_answer = msgspec.msgpack.Decoder(Answer).decode


class _Envelope(msgspec.Struct):
    id: Any = 0
    version: Any = 0


_decode_envelope = msgspec.msgpack.Decoder(_Envelope).decode


def decode_request(data: bytes) -> tuple[int, Request | Failed]:
    """(id, the request), or, in its place, what to answer."""
    number = 0
    try:
        envelope = _decode_envelope(data)
        if isinstance(envelope.id, int) and 0 <= envelope.id < 1 << 63:
            number = envelope.id
        if envelope.version != VERSION:
            version = repr(envelope.version)[:40]
            text = f"consumers' protocol version {version}; this broker speaks {VERSION}"
            return number, Failed(number, text, "malformed", "use a client and a broker of the same version")
        request: Request = _decode_request(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return number, Failed(number, f"no request: {error}", "malformed")
    return request.id, request


def decode_answer(data: bytes) -> Answer:
    """The answer in a frame.  Raises ControlError."""
    try:
        answer: Answer = _decode_answer(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ControlError(f"no answer: {error}; use one version of Brim on both sides") from error
    return answer
