"""Control socket of a running bridge, in the broker or in a process of its own: its messages and its server.

Owns bridge-NAME.sock in the runtime directory; edge.rpc has the layer below. Only the user that runs the
bridge and root may send requests.

    request      answer
    state        report      the content of `brim bridge status`
    pause        effects     sentences about the effect of a command
    resume       effects
    skip         effects     pass over what waits, of a stream or partition, or of all
    previewskip  effects     the effects that skip would have
    backfill     effects     drain a partition again, from an offset

Version 2 has "op" and "version", as the control socket of the broker; version 1 had "do" instead.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from msgspec import Meta

from bridge.drain.bridge import Bridge
from bridge.errors import BridgeError, BridgeUnreachable, InvalidCommand
from edge.errors import BrokerUnreachable, ControlError, Refused
from edge.rpc.client import RpcClient
from edge.rpc.peers import Peer, Peers
from edge.rpc.protocol import Failed, Message, Protocol
from edge.rpc.server import Server

VERSION: Final = 2
PREFIX, SUFFIX = "bridge-", ".sock"
CONNECTIONS_MAX = 32
COMMAND_S = 20.0  # for a request to the sink, which a command may have to wait for
ANSWER_S = 30.0  # maximum wait of a client
PARTITIONS_MAX = 256  # in a report, so that it fits into an answer

M = TypeVar("M", bound=Message)
Number = Annotated[int, Meta(ge=0)]


class ControlRequest(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all requests. An unknown key is refused: it could limit what a command does."""

    version: int = VERSION


class State(ControlRequest, frozen=True):
    """Request the state of the bridge."""


class Pause(ControlRequest, frozen=True):
    """Command: drain nothing until `resume`."""


class Resume(ControlRequest, frozen=True):
    """Command: drain again."""


class Skip(ControlRequest, frozen=True):
    """Command: pass over the records that wait. None: of each stream, of each partition."""

    stream: str | None = None
    partition: Number | None = None


class PreviewSkip(Skip, frozen=True):
    """Query: the records that Skip would pass over."""


class Backfill(ControlRequest, frozen=True):
    """Command: drain again from an offset of the present epoch."""

    stream: str
    partition: Number
    first_offset: Number


class Report(Message, frozen=True):
    """State of the bridge, a bridge.drain.status.BridgeState; above PARTITIONS_MAX without the partitions."""

    state: dict[str, Any]


class Effects(Message, frozen=True):
    """Effects of a command, one sentence each."""

    lines: tuple[str, ...]


Command = Pause | Resume | Skip | PreviewSkip | Backfill

PROTOCOL: Final = Protocol(
    "bridge",
    VERSION,
    State | Command,
    Report | Effects | Failed,
    request_max_bytes=16 << 10,
    answer_max_bytes=128 << 10,  # below the limit of Linux for a datagram in a socket's buffer
)


def names(runtime_dir: str | os.PathLike[str]) -> list[str]:
    """Names of the bridges that have a socket there. A bridge that was killed leaves its socket behind."""
    socket_names = (path.name for path in Path(runtime_dir).glob(f"{PREFIX}*{SUFFIX}"))
    return sorted(name.removeprefix(PREFIX).removesuffix(SUFFIX) for name in socket_names)


def state_of(
    runtime_dir: str | os.PathLike[str], name: str, *, timeout_s: float = ANSWER_S
) -> dict[str, Any]:
    """State of the bridge of that name. Raises BridgeUnreachable: no bridge answers."""
    return _request(runtime_dir, name, State(), Report, timeout_s).state


def send(runtime_dir: str | os.PathLike[str], name: str, command: Command) -> tuple[str, ...]:
    """Send a command to the bridge of that name, and return its effects.

    Raises BridgeUnreachable: no bridge answers; InvalidCommand: the bridge refuses.
    """
    return _request(runtime_dir, name, command, Effects, ANSWER_S).lines


def _request(
    runtime_dir: str | os.PathLike[str], name: str, request: Message, kind: type[M], timeout_s: float
) -> M:
    path = _path(runtime_dir, name)
    try:
        with RpcClient(PROTOCOL, path, timeout_s=timeout_s) as client:
            return client.request(request, kind)
    except Refused as error:
        raise InvalidCommand(str(error), hint=error.hint) from error
    except (BrokerUnreachable, ControlError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        raise BridgeUnreachable(
            f"bridge {name} does not answer at {path}: {cause}",
            hint=f"start it: `brim bridge run {name}`, or a broker whose configuration has it",
        ) from error


class ControlSocket(Server[Peer]):
    """Control socket of one bridge, served from start() to stop()."""

    when_full = State

    def __init__(self, bridge: Bridge) -> None:
        settings = bridge.settings
        peers = Peers(Peer, CONNECTIONS_MAX, f"the limit of {CONNECTIONS_MAX}")
        # The lock of the checkpoint proves that no other process is this bridge.
        super().__init__(PROTOCOL, _path(settings.runtime_dir, settings.name), peers, mode=0o600)
        self._bridge = bridge

    async def answer(self, peer: Peer, request: State | Command) -> Message:
        """Answer a request. Raises Refused."""
        if peer.uid not in {0, os.geteuid()}:
            raise Refused(f"user {peer.uid} may not command this bridge", hint=f"be user {os.geteuid()}")
        if isinstance(request, State):
            state = self._bridge.state().as_dict()
            fits = len(state["partitions"]) <= PARTITIONS_MAX
            return Report(state if fits else {**state, "partitions": []})
        try:
            async with asyncio.timeout(COMMAND_S):
                effects = await asyncio.shield(asyncio.wrap_future(self._run_command(request)))
            return Effects(tuple(effects))
        except TimeoutError:
            return Effects(
                ("it takes effect when the sink answers, or after half a minute without an answer",)
            )
        except BridgeError as error:
            raise Refused(str(error), hint=error.hint) from error

    def _run_command(self, command: Command) -> Future[list[str]]:
        match command:
            case Pause():
                return self._bridge.pause()
            case Resume():
                return self._bridge.resume()
            case PreviewSkip():
                return self._bridge.preview_skip(command.stream, command.partition)
            case Skip():
                return self._bridge.skip(command.stream, command.partition)
            case Backfill():
                return self._bridge.backfill(command.stream, command.partition, command.first_offset)


def _path(runtime_dir: str | os.PathLike[str], name: str) -> Path:
    return Path(runtime_dir) / f"{PREFIX}{name}{SUFFIX}"
