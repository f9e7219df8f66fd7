"""A disk that fails under the broker while it is busy: nothing is acknowledged that is not safe, `brim
status` reports the fault, and all continues by itself once the disk works again.

    full        no room for more: ENOSPC, until there is
    write       some writes fail with EIO
    sync        one sync fails with EIO, and may have written anything: the next one proves nothing
    read-only   the file system has become read-only: EROFS, until it is mounted again
    files       the process may open no more files, and needs a new segment: EMFILE, until it may
    late        a sync fails with ENOSPC: the file system had promised room that it has not
    short       writes take a part of what they are given

Several in each life of the broker; then the power is cut, and what was acknowledged at `disk` must be there
(cuts.py).
"""

import errno
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence

from edge.errors import BrokerUnreachable
from edge.local.protocol import Connection, Report, Status
from tests.campaigns.cuts import PowerCuts
from tests.campaigns.running import Campaign, Outcome
from tests.support.directories import memory_directory
from tests.support.lossy_mount import LossyMount, missing
from tests.support.outside_client import Lost
from tests.support.waiting import PATIENCE_S

LOAD_S = (0.001, 0.03)
LIVES = 3  # of one seed
MANY = 64  # writes that fail: until it says so
REASONS = {"full": "ENOSPC", "write": "EIO", "read-only": "EROFS", "files": "EMFILE"}


class Stuck(AssertionError):
    """The broker does not report the fault, or does not continue."""


class FaultyDisk(PowerCuts):
    """A broker, its promises, and a disk that fails."""

    _control: Connection

    def live(self, faults: Sequence[str]) -> None:
        """One life with these faults, and a power cut at its end; then the next one begins.

        Raises Stuck, Lost.
        """
        for fault in faults:
            self.suffer(fault)
        self._cut(0)
        self._look()
        for its in self.promises.values():
            its.forget()
        self.broker.start()

    def suffer(self, fault: str) -> None:
        """Load, the fault, more load, the disk works again, more load.  Raises Stuck."""
        for it in self.publishers:
            if not it.connected:
                it.connect(self.broker.port)
        with self.broker.control() as self._control:  # One that is open: there may be no room for another.
            self._pump(self.random.uniform(*LOAD_S))
            try:
                self._reason()  # Answered: the connection was accepted, which takes a descriptor.
                getattr(self, f"_{fault.replace('-', '_')}")()
                self._goes_on(fault)
            except BrokerUnreachable as error:
                raise Stuck(f"{fault}: {error}") from error
        self.counts[fault] += 1
        self.counts["faults"] += 1

    # ---- what may happen ----

    def _full(self) -> None:
        self.mount.ask("room", self.random.randrange(200_000))
        self._says("full")
        self.mount.ask("room", None)

    def _write(self) -> None:
        """Once is written again at once; more often is a state that it says."""
        times = self.random.choice((1, 2, MANY))
        before = self._failed()
        self.mount.ask("fail", "pwritev", errno.EIO, times)
        if times == MANY:
            self._says("write")
            self.mount.ask("clear")
        else:
            self._pump_until(lambda: self._failed() >= before + times, "no write has failed")

    def _sync(self) -> None:
        self._sync_fails(errno.EIO)

    def _late(self) -> None:
        self._sync_fails(errno.ENOSPC)

    def _sync_fails(self, error: int) -> None:
        before = self._failed()
        self.mount.ask("fail", "fdatasync", error, 1)
        self._pump_until(lambda: self._failed() > before, "no sync has failed")

    def _short(self) -> None:
        before = self._failed("short")
        self.mount.ask("short", True)
        self._pump_until(lambda: self._failed("short") > before + 3, "no write was short")
        self.mount.ask("short", False)

    def _read_only(self) -> None:
        self.mount.ask("read_only", True)
        self._says("read-only")
        self.mount.ask("read_only", False)

    def _files(self) -> None:
        limits = resource.prlimit(self.broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.broker.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        self.mount.ask("fail", "pwritev", errno.EIO, 1)  # It needs a new segment, and cannot open it.
        self._says("files")
        resource.prlimit(self.broker.pid, resource.RLIMIT_NOFILE, limits)

    def _failed(self, how: str = "failed") -> int:
        counts: dict[str, int] = self.mount.ask("counts")
        return counts.get(how, 0)

    # ---- what must happen ----

    def _says(self, fault: str) -> None:
        """The log is read-only, for that reason."""
        self._pump_until(lambda: REASONS[fault] in self._reason(), f"{fault}: status does not say so")

    def _reason(self) -> str:
        state = self._control.request(Status(), Report).report["log"]
        return str(state["reason"]) if state["read_only"] else ""

    def _goes_on(self, fault: str) -> None:
        """Each publisher gets acknowledgements for all that waited, and more; and the status is good."""
        sent = {it: it.sent for it in self.publishers}
        self._pump_until(
            lambda: all(it.connected and it.waiting_since > sent[it] for it in self.publishers),
            f"{fault}: no acknowledgements once the disk works again",
        )
        self._pump_until(lambda: not self._reason(), f"{fault}: the status stays bad")

    def _pump_until(self, condition: Callable[[], object], otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise Stuck(otherwise)
            for it in self.publishers:
                if not it.connected:  # A queue that was full for too long costs the connection.
                    it.connect(self.broker.port)
                    self.counts["connections lost"] += 1
            self._pump(0.01)


KINDS = ("full", "write", "sync", "read-only", "files", "late", "short")


def run_seed(seed: int) -> Outcome:
    """One disk, and all kinds of faults in each life of the broker on it."""
    wrong = []
    with memory_directory() as memory, LossyMount() as mount, FaultyDisk(memory, mount, seed) as campaign:
        try:
            for _ in range(LIVES):
                campaign.live(campaign.random.sample(KINDS, len(KINDS)))
        except (Lost, Stuck) as error:
            wrong.append(f"seed {seed}: {error}")
        counts = campaign.counts + Counter(campaign.acknowledged())
    return counts, wrong


FAULTS = Campaign(
    name="faults",
    what="disks that are full, fail, or may not be written, under the broker",
    unit="faults",
    wanted=100 * len(KINDS),
    run_seed=run_seed,
    missing=missing,
)
