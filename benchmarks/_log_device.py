"""Disk of the log's benchmark: its speed for other programs, and the number of bytes written.

Bare files have their blocks before they are measured, as a segment of the log has. fio is Debian's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from persistence.log.log_thread import FIFO_PRIORITY

SECTOR_BYTES = 512
FILE_BYTES = 512 << 20
SEGMENT_BYTES = 64 << 20
CHUNK = bytes(8 << 20)
FIO_INSTALL = "apt-get install -y fio"

# Rate of the device, and rate of the page cache: writes of 8 MiB, each synced, as the log's.
FIO_WAYS = {
    "direct": ["--bs=1M", "--direct=1", "--iodepth=8", "--ioengine=libaio"],
    "synced": ["--bs=8M", "--direct=0", "--fdatasync=1", "--ioengine=psync"],
}


def filled(path: Path, size_bytes: int) -> int:
    """Descriptor of a file of zeros that is on the disk."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    for place in range(0, size_bytes, len(CHUNK)):
        os.pwrite(handle, CHUNK, place)
    os.fsync(handle)
    return handle


class Fio:
    """Sequential writes over one file of FILE_BYTES."""

    def __init__(self, directory: Path) -> None:
        """Raises FileNotFoundError: fio is not installed."""
        if shutil.which("fio") is None:
            raise FileNotFoundError(FIO_INSTALL)
        self._path = directory / "fio"
        os.close(filled(self._path, FILE_BYTES))

    def rate(self, way: str, seconds: float) -> float:
        """Bytes per second."""
        command = [
            *("fio", "--name=log", f"--filename={self._path}", f"--size={FILE_BYTES}", "--rw=write"),
            *("--overwrite=1", "--time_based", f"--runtime={seconds}", "--output-format=json"),
            *FIO_WAYS[way],
        ]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise SystemExit(f"fio: {run.stderr or run.stdout}")
        told = json.loads(run.stdout[run.stdout.index("{") :])
        rate: float = told["jobs"][0]["write"]["bw_bytes"]
        return rate


class BareFile:
    """File of a segment's size; small writes follow each other, each synced."""

    def __init__(self, directory: Path) -> None:
        self._handle = filled(directory / "bare", SEGMENT_BYTES)
        self._place = 0

    def syncs(self, count: int, data: bytes) -> list[float]:
        """µs of each pwrite and fdatasync."""
        found = []
        for _ in range(count):
            started = time.perf_counter()
            os.pwrite(self._handle, data, self._place)
            os.fdatasync(self._handle)
            found.append((time.perf_counter() - started) * 1e6)
            self._place = (self._place + len(data)) % (SEGMENT_BYTES - len(data))
        return found

    def close(self) -> None:
        """The file stays with its directory."""
        os.close(self._handle)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Run the calling thread before threads of normal priority, as the log's thread runs itself, if that is
    allowed.

    Other work of the machine then disturbs all compared measurements alike, and little.
    """
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(FIFO_PRIORITY))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


class Device:
    """Block device of a directory, with the kernel's counts of all writes."""

    def __init__(self, directory: Path) -> None:
        number = os.stat(directory).st_dev
        self._stat = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
        self.known = self._stat.exists()

    def written_bytes(self) -> int:
        """Bytes written since the machine started."""
        return int(self._stat.read_text().split()[6]) * SECTOR_BYTES


class Elsewhere:
    """Load of other processes, which makes every figure here worse."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        """Seconds of work of all processors, and of this process with its children."""
        fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        user, nice, system, _, _, irq, softirq, steal = fields[:8]
        ticks = os.sysconf("SC_CLK_TCK")
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        return (user + nice + system + irq + softirq + steal) / ticks, own

    def cores(self, seconds: float) -> float:
        """Average number of busy cores since this was created, `seconds` ago."""
        busy, own = (now - before for now, before in zip(self._now(), self._before, strict=True))
        return max(0.0, busy - own) / seconds
