"""Control protocol: the messages of the control socket, control.sock in the runtime directory.

edge.rpc has the layer below: encoding, server and client. On a connection that follows, notifications
(`ring_added`) may come between answers: for the ring of a local producer, and for each ring of an added
stream that meets the filters of the last `rings` request. A process keeps its connection while it uses what
it was granted.

    request          answer
    status           report      the content of `brim status`
    overview         report      the same without clients, which costs the broker little
    rings            ring_list   the rings that may hold records for some topic filters
    admit            done        let this blocking reader block the writer while the connection lasts
    produce          ring_list   one ring, for this process to write
    sessions         session_list  a page of the sessions of MQTT clients
    session          session_details  one session, with its subscriptions
    disconnect       done        end the connection of a client; only for the broker's own user, and root
    remove_session   done        end a session; only for the broker's own user, and root
    reload           reloaded    read the configuration and its files again; only for the same users
    save             saved       write the session snapshot and retained messages; only for the same users
    settings         setting_list  the configuration in effect; only for the same users
    log_lines        log_page    the newest lines that the broker has logged; only for the same users
    retained         retained_list  a page of the retained messages of a topic filter
    clear_retained   cleared     remove a page of them; only for the broker's own user, and root
    delayed          delayed_list  a page of the delayed messages, in the order of delivery
    cancel_delayed   cancelled   remove delayed messages; only for the broker's own user, and root
    drained          done        a sink has records that publishers may wait for (durability = "upstream")

Rule for change: see edge.rpc.protocol.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from edge.config.directories import SERVICE_DIR, StrPath, control_socket, runtime_directory
from edge.rpc.client import REPLY_TIMEOUT_S, RpcClient
from edge.rpc.protocol import Done, Failed, Message, Protocol

__all__ = [
    "ANSWER_MAX_BYTES",
    "PROTOCOL",
    "VERSION",
    "Admit",
    "Answer",
    "CancelDelayed",
    "Cancelled",
    "ClearRetained",
    "Cleared",
    "Connection",
    "Delayed",
    "DelayedList",
    "Disconnect",
    "Done",
    "Drained",
    "Failed",
    "LogLines",
    "LogPage",
    "Message",
    "Overview",
    "Produce",
    "Reload",
    "Reloaded",
    "RemoveSession",
    "Report",
    "Request",
    "Retained",
    "RetainedList",
    "RingAdded",
    "RingInfo",
    "RingList",
    "Rings",
    "Save",
    "Saved",
    "Session",
    "SessionDetails",
    "SessionList",
    "Sessions",
    "SettingList",
    "Settings",
    "Status",
]  # fmt: skip

VERSION: Final = 2
Place = Annotated[int, Meta(ge=0, lt=1 << 32)]
PayloadMax = Annotated[int, Meta(ge=0, lt=1 << 32)]
REQUEST_MAX_BYTES: Final = 68 << 10  # a client identifier of 64 KiB; hundreds of long topic filters
ANSWER_MAX_BYTES: Final = 128 << 10  # below the 208 KiB that Linux allows a datagram in a socket's buffer


class Status(Message, frozen=True):
    """Request the status report."""

    version: int = VERSION


class Overview(Message, frozen=True):
    """Request the status report without clients."""

    version: int = VERSION


class Rings(Message, frozen=True):
    """Request the rings that may hold records for `filters`; `follow`: and notifications about new ones."""

    filters: tuple[str, ...]
    follow: bool = False
    version: int = VERSION


class Admit(Message, frozen=True):
    """Request that the blocking reader in `slot` of the cursor file of `ring` can block the writer."""

    ring: str
    slot: int
    version: int = VERSION


class Produce(Message, frozen=True):
    """Request the ring "{stream}@{producer}", to write. Stream "": that of [[producer]], or "default"."""

    producer: str
    stream: str
    version: int = VERSION


class RingInfo(msgspec.Struct, frozen=True):
    """A ring that processes of this machine may attach."""

    name: str
    path: str  # without suffix, as Ring.attach() requires
    epoch: int
    stream: str
    kind: Literal["partition", "producer"]
    when_full: Literal["overwrite", "block", "reject"]
    queue_timeout_ms: int


class RingList(Message, frozen=True, tag="ring_list"):
    """The requested rings."""

    rings: tuple[RingInfo, ...]


class RingAdded(Message, frozen=True, tag="ring_added"):
    """Notification: a new ring that may hold records for the filters of this connection."""

    ring: RingInfo


class Report(Message, frozen=True):
    """Status report of the broker."""

    report: dict[str, Any]


class Drained(Message, frozen=True):
    """Report the progress of the sink of `bridge`, which runs outside the broker, in a ring.

    `lost`: offsets below `offset` that the sink does not have.
    """

    bridge: str
    ring: str
    epoch: int
    offset: int
    lost: tuple[tuple[int, int], ...] = ()
    version: int = VERSION


class Sessions(Message, frozen=True):
    """Request a page of the sessions of MQTT clients, oldest first, from number `first` on."""

    first: Place = 0
    version: int = VERSION


class SessionList(Message, frozen=True, tag="session_list"):
    """Sessions (SessionAdmin.page in edge.broker); `more`: True if further sessions follow."""

    sessions: tuple[dict[str, Any], ...]
    more: bool


class Session(Message, frozen=True):
    """Request the session of one client in detail."""

    client_id: str
    version: int = VERSION


class SessionDetails(Message, frozen=True, tag="session_details"):
    """A session (SessionAdmin.show in edge.broker). `not_shown`: number of filters that did not fit."""

    session: dict[str, Any]
    not_shown: int = 0


class Disconnect(Message, frozen=True):
    """Request the end of the connection of a client. Its session stays; its will is published."""

    client_id: str
    version: int = VERSION


class Retained(Message, frozen=True):
    """Request a page of retained messages, with at most `payload_max` bytes of each payload.

    `first`: 0, then `after` of the previous page.
    """

    filter: str
    first: Place = 0
    payload_max: PayloadMax = 256
    version: int = VERSION


class RetainedList(Message, frozen=True, tag="retained_list"):
    """Retained messages (RetainedAdmin.page in edge.broker); `after`: None at the end."""

    messages: tuple[dict[str, Any], ...]
    after: int | None


class ClearRetained(Message, frozen=True, tag="clear_retained"):
    """Request the removal of a page of retained messages; subscribers get an empty message of each topic."""

    filter: str
    first: Place = 0
    version: int = VERSION


class Cleared(Message, frozen=True, omit_defaults=True):
    """Number of removed messages; `after`: None at the end, otherwise the place to continue from.

    `refused`: topics of which the broker can never store an empty message, so that theirs stays.
    """

    count: int
    after: int | None
    refused: tuple[str, ...] = ()


class Delayed(Message, frozen=True):
    """Request a page of delayed messages, with at most `payload_max` bytes of each payload.

    `after`: due_ns and id of the last message of the previous page.
    """

    after: tuple[int, int] = (-1, 0)
    payload_max: PayloadMax = 256
    version: int = VERSION


class DelayedList(Message, frozen=True, tag="delayed_list"):
    """Delayed messages (DelayedMessages.page in edge.delayed); `more`: True if further messages follow."""

    messages: tuple[dict[str, Any], ...]
    more: bool


class CancelDelayed(Message, frozen=True, tag="cancel_delayed"):
    """Request the removal of delayed messages by their numbers."""

    ids: tuple[int, ...]
    version: int = VERSION


class Cancelled(Message, frozen=True):
    """Numbers of the removed messages."""

    ids: tuple[int, ...]


class Reload(Message, frozen=True):
    """Request that the configuration, passwords, rules and certificates are read again, as by SIGHUP."""

    version: int = VERSION


class Reloaded(Message, frozen=True):
    """Result of a reload.

    `applied`: files and changed settings that are in effect now. `failed`: mistakes; with one in a file,
    nothing was applied. `needs_restart`: settings of the configuration that are not in effect.
    """

    applied: tuple[str, ...]
    failed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()


class Save(Message, frozen=True):
    """Request that sessions and retained messages are written to their files.

    `ticket`: 0 begins; then that of the answer, until the answer is `done`.
    """

    ticket: int = 0
    version: int = VERSION


class Saved(Message, frozen=True):
    """Progress of a request to save."""

    ticket: int
    done: bool


class Settings(Message, frozen=True):
    """Request the configuration in effect."""

    version: int = VERSION


class SettingList(Message, frozen=True, omit_defaults=True, tag="setting_list"):
    """The configuration (edge.config.schema.Config), without passwords and keys.

    `lowered`: names of the settings that are not configured, and that the start has lowered.
    """

    settings: dict[str, Any]
    lowered: tuple[str, ...] = ()


class LogLines(Message, frozen=True, tag="log_lines"):
    """Request the log lines after number `after`; 0: all that the broker keeps."""

    after: int = 0
    version: int = VERSION


class LogPage(Message, frozen=True, tag="log_page"):
    """Log lines (edge.recent_lines), the oldest first.

    `last`: `after` of the next request. `skipped`: lines that the broker no longer keeps. `more`: True if
    further lines follow.
    """

    lines: tuple[dict[str, Any], ...]
    last: int
    skipped: int = 0
    more: bool = False


class RemoveSession(Message, frozen=True, tag="remove_session"):
    """Request the end of the session of a client, and of its connection."""

    client_id: str
    version: int = VERSION


Request = (
    Status | Overview | Rings | Admit | Produce | Drained | Sessions | Session | Disconnect | RemoveSession
    | Retained | ClearRetained | Reload | Save | Settings | LogLines | Delayed | CancelDelayed
)  # fmt: skip
Answer = (
    RingList | Report | SessionList | SessionDetails | RetainedList | Cleared | Reloaded | Saved
    | SettingList | LogPage | DelayedList | Cancelled | Done | Failed
)  # fmt: skip

PROTOCOL: Final = Protocol(
    "broker",
    VERSION,
    Request,
    Answer | RingAdded,
    request_max_bytes=REQUEST_MAX_BYTES,
    answer_max_bytes=ANSWER_MAX_BYTES,
)


class Connection(RpcClient):
    """Client side of the control socket. `news` has the RingAdded.

    Without `runtime_dir` only a broker of this user, of root or of the system service is accepted. Raises
    BrokerUnreachable if no broker listens there, or after the broker has ended.
    """

    def __init__(self, runtime_dir: StrPath | None = None, *, timeout_s: float = REPLY_TIMEOUT_S) -> None:
        directory = runtime_directory(runtime_dir)
        path = control_socket(directory)
        is_service = directory.parent == Path(SERVICE_DIR)  # only root makes directories there
        uids = frozenset({os.geteuid(), 0}) if runtime_dir is None and not is_service else None
        super().__init__(PROTOCOL, path, uids=uids, notification=RingAdded, timeout_s=timeout_s)
