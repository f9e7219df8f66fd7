"""Lease in an object store: at most one bridge at a time drains an edge to a place.

Two bridges of one edge id (a cloned machine, a copied configuration) would give the same numbers to different
files. A store has no locks, but it can write an object on the condition that it is unchanged since it was
read (If-Match). So edge=ID/.lease names the holder, in JSON, and is rewritten every RENEW_S while files are
put.

    no holder, or this holder     taken at once: a bridge that was killed continues
    another holder                refused, until it was not renewed for LEASE_S

An idle holder does not renew, so two bridges of one edge may hold the lease in turns. Only take() takes it
from another holder. It draws a new turn, and returns it with the turn that it found (lease_holder.py). The
drain then knows if another bridge may have given numbers.

A holder is an installation during one boot (bridge/format/installation.py): clones of a machine are different
holders.

A directory has a lock of the file system instead (directory.py).

No two clocks are compared: a waiting bridge measures with its own clock how long the object is unchanged.
That clock counts the time in which a machine is suspended. A holder that could not renew for longer than
RENEW_S puts nothing before it has renewed. RENEW_S and the longest put together are less than LEASE_S, so no
file is put under a lease that was lost, unless the process is stopped meanwhile. The lease is checked again
after the put. The next begin of the drain removes such a file if another bridge has given its number, too
(bridge/drain/reconcile.py).

On one machine two bridges may be the same holder. There the name of a socket keeps the second one out; the
kernel removes the name with its process.

A store that cannot write on a condition (If-Match) has no leases. The log reports that.
"""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.errors import SinkUnavailable
from bridge.format.installation import Holder
from bridge.sinks.interface import Turn
from bridge.sinks.lease_holder import holder_as_dict, holder_in, next_turn, refusal

if TYPE_CHECKING:
    from obstore.store import ObjectStore

log = logging.getLogger(__name__)

LEASE_S, RENEW_S = 90.0, 30.0  # a put takes at most 35 s: 30 for the request, 5 to connect
MACHINE_ID = Path("/etc/machine-id")


def this_machine() -> str:
    """Name for this machine that reveals only its host name."""
    try:
        identity = MACHINE_ID.read_bytes()
    except OSError:
        identity = b""
    return f"{socket.gethostname()}-{hashlib.blake2b(b'brim lease' + identity, digest_size=6).hexdigest()}"


def _boot_time_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """Lease on edge=`edge` in `store`; `where` names the place in errors. Any thread may call it."""

    def __init__(
        self,
        store: ObjectStore,
        where: str,
        edge: str,
        holder: Holder | str | None = None,
        clock: Callable[[], float] = _boot_time_s,
    ) -> None:
        import obstore
        from obstore import exceptions

        self._obstore, self._exceptions = obstore, exceptions
        self._store, self._where, self._path = store, f"{where}/edge={edge}", f"edge={edge}/.lease"
        self._own = holder or this_machine()
        self._holder = self._own.key if isinstance(self._own, Holder) else self._own
        self._clock = clock
        self._lock = threading.Lock()
        # Of the object that this holder has written; None: the lease is not held.
        self._e_tag: str | None = None
        self._renewed_at = 0.0
        self._held = False  # it was taken; another holder may have it now
        self._turn = Turn("", "")  # the one that was written last, or was to be written
        # Version of another holder's object, and the time it was first seen.
        self._seen: tuple[str | None, float] = (None, 0.0)
        self._conditional = True
        self._name: LocalName | None = None

    def take(self) -> Turn | None:
        """Take the lease. Returns its turn; None: the store has no leases.

        Raises SinkUnavailable: another bridge holds it; errors of obstore.
        """
        with self._lock:
            self._take_name()
            if self._conditional and not (self._e_tag and self._renew()):
                self._contend()
            return self._turn if self._conditional else None

    def keep(self) -> None:
        """Check before a put that the lease is still held. Raises SinkUnavailable; errors of obstore."""
        with self._lock:
            if not self._conditional or (self._e_tag and self._clock() - self._renewed_at < RENEW_S):
                return
            if self._e_tag is None:
                self._take_name()
                self._contend(own=self._held)
            elif not self._renew():
                raise self._taken_over()

    def give_up(self) -> None:
        """Release the lease for the next bridge. Raises nothing: otherwise the lease expires."""
        with self._lock:
            try:
                if self._e_tag is not None:
                    self._write("", {"e_tag": self._e_tag})
            except (self._exceptions.BaseError, OSError) as error:
                reason = str(error).partition("\n")[0]  # without obstore's debug dump
                log.info("lease not released, it expires at=%s reason=%s", self._where, reason)
            self._e_tag, self._held = None, False
            if self._name is not None:
                self._name.release()
                self._name = None

    def _contend(self, *, own: bool = False) -> None:
        """Write the lease. `own`: only if this holder had it last."""
        current = self._read()
        other, turn, e_tag = current or ("", next_turn(b""), None)
        holder = other.key if isinstance(other, Holder) else other
        if holder not in {"", self._holder} and (left_s := self._left_s(e_tag)) > 0:
            raise refusal(self._where, other, self._own, left_s)
        if not turn.before or turn.before != self._turn.own:
            if own:
                raise self._taken_over()
            self._turn = turn
        written = self._write(self._holder, {"e_tag": e_tag} if current else "create")
        if self._conditional and not written:
            raise SinkUnavailable(
                f"{self._where}: another bridge was quicker", hint="let one bridge drain there"
            )
        self._held = True

    def _taken_over(self) -> SinkUnavailable:
        return SinkUnavailable(
            f"{self._where}: another bridge has taken over", hint="let one bridge drain this edge there"
        )

    def _left_s(self, e_tag: str | None) -> float:
        """Seconds for which the lease that was seen can still be valid."""
        now = self._clock()
        if self._seen[0] != e_tag:
            self._seen = (e_tag, now)
        return self._seen[1] + LEASE_S - now

    def _renew(self) -> bool:
        return self._write(self._holder, {"e_tag": self._e_tag})

    def _read(self) -> tuple[Holder | str, Turn, str] | None:
        """The holder, a turn after that in the object, and the version of the object; None: it is absent."""
        try:
            response = self._obstore.get(self._store, self._path)
            content, e_tag = bytes(response.bytes()), response.meta["e_tag"]
        except FileNotFoundError:
            return None
        if e_tag is None:
            raise SinkUnavailable(
                f"{self._where}/.lease: the answer has no version (ETag)",
                hint="check the network: a portal or a proxy may have answered instead of the store",
            )
        return holder_in(content), next_turn(content), e_tag

    def _write(self, holder: str, mode: str | Mapping[str, Any]) -> bool:
        """Write the lease. False: it is no longer the object that `mode` requires."""
        self._e_tag = None
        at = self._clock()  # time of the request, not of its reply
        own = holder_as_dict(self._own) if holder and isinstance(self._own, Holder) else {"holder": holder}
        content = json.dumps({**own, "turn": self._turn.own, "at": time.time_ns()}).encode()
        put: Any = self._obstore.put  # its type of mode omits a version that is absent
        try:
            done = put(self._store, self._path, content, mode=mode)
        except (self._exceptions.AlreadyExistsError, self._exceptions.PreconditionError):
            return False
        except (self._exceptions.NotSupportedError, NotImplementedError):
            self._conditional = False
            log.warning("lease not taken: the store has no conditional writes at=%s", self._where)
            return True
        self._e_tag, self._renewed_at = done["e_tag"], at
        return True

    def _take_name(self) -> None:
        if self._name is None:
            self._name = LocalName(self._where, self._holder)


class LocalName:
    """Claim that one bridge of this machine drains to `where`: a socket name that the kernel removes with its
    process.

    Raises SinkUnavailable: another bridge has the name.
    """

    def __init__(self, where: str, holder: str) -> None:
        name = hashlib.blake2b(f"{holder} {where}".encode(), digest_size=16).hexdigest()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.bind(f"\0brim-bridge-{name}")
        except OSError as error:
            self._socket.close()
            raise SinkUnavailable(
                f"{where}: another bridge of this machine drains this edge there",
                hint="stop that one, or give this one a place of its own",
            ) from error

    def release(self) -> None:
        """Release the name."""
        self._socket.close()
