"""`brim run` with streams of each durability, to be killed and started again; reads of its rings and logs.

What is read here is read without the broker: rings as any local process may, logs by recovering a copy.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from edge.local.protocol import Connection
from persistence import Log
from persistence.read.directories import logs_in
from ringbuf import Ring, scan_records
from ringbuf.record import RecordHeader, payload_position, span
from tests.support.children import ModuleChild
from tests.support.outside_client import Lost, number_of
from tests.support.ports import free_port

RING_BYTES = 8 << 20
SEGMENT_BYTES = 1 << 20

Found = list[tuple[int, int]]  # epoch and offset made one number that rises, and the message's number


class LoggedBroker:
    """A broker process.  `durability`: by stream name; the stream has the topic "NAME/#".

    `module` is what runs, with the arguments of `brim`: another one may have a mistake planted.
    """

    def __init__(
        self,
        runtime_dir: Path,
        state_dir: Path,
        durability: dict[str, str],
        *,
        module: str = "edge",
        settings: str = "",
        retain_mib: int = 96,
        direct: bool = False,
        ring_bytes: int = RING_BYTES,
    ) -> None:
        self.port = free_port()
        self.runtime_dir, self.state_dir = runtime_dir, state_dir
        self.durability = durability
        self._module = module
        self._config = runtime_dir.parent / f"{runtime_dir.name}.toml"
        self._child: ModuleChild | None = None
        names = {"edge_id": "here", "runtime_dir": str(runtime_dir), "state_dir": str(state_dir)}
        lines = [f"{key} = {json.dumps(value)}" for key, value in names.items()]
        lines += [
            "[[listener]]",
            f"port = {self.port}",
            "[sys]",
            "interval_s = 0",
            "[zmq]",
            "enabled = false",
        ]
        lines += ["[log]", f"segment_bytes = {SEGMENT_BYTES}", f"retain_bytes = {retain_mib << 20}"]
        lines += [f"direct = {json.dumps(direct)}"]
        # What is acknowledged is kept: a disk that is full is for the writer to find out.
        lines += [f"disk_{limit}_percent = 101" for limit in ("warn", "delete", "read_only")]
        for name, value in durability.items():
            lines += [
                "[[stream]]",
                f'name = "{name}"',
                f'topics = ["{name}/#"]',
                f"ring_bytes = {ring_bytes}",
            ]
            lines += [f'durability = "{value}"', "sync_interval_ms = 20", "sync_bytes = 65536"]
        self._config.write_text("\n".join([*lines, settings]))

    def spawn(self) -> None:
        """Starts it, and does not wait."""
        self._child = ModuleChild(self._module, "run", "--config", self._config)

    def start(self) -> None:
        """Returns when it is ready."""
        self.spawn()
        assert self._child is not None
        self._child.lines_until("ready")

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        assert self._child is not None
        return self._child.pid

    @property
    def running(self) -> bool:
        """True if the process has not ended."""
        return self._child is not None and self._child.process.poll() is None

    def kill(self) -> str:
        """With -9; what it had said on standard error."""
        assert self._child is not None
        child, self._child = self._child, None
        child.kill()
        return child.log()

    def stop(self) -> str:
        """With SIGTERM, which it obeys with status 0; what it had said."""
        assert self._child is not None
        child, self._child = self._child, None
        status, _, errors = child.stop()
        assert status == 0, errors
        return errors

    def control(self) -> Connection:
        """Its control socket, to be closed."""
        return Connection(self.runtime_dir)

    def close(self) -> None:
        """The process, if there is one, is killed; the configuration is gone."""
        if self._child is not None:
            self.kill()
        self._config.unlink(missing_ok=True)


def in_ring(path: Path, behind: int = -1) -> Found:
    """Every message that a ring holds behind that place, in its order, and perhaps some before."""
    found: Found = []
    with Ring.attach(path) as ring, ring.reader(start="oldest") as reader:
        while ranges := reader.ranges(1 << 20):
            for it in ranges:
                if it.epoch << 64 | it.offset + it.count > behind:
                    found += _messages(bytes(it.view), it.epoch)
    return found


def in_log(directory: Path, copy: Path, rings: list[str]) -> dict[str, Found]:
    """Every message of these rings that the logs in `directory` would show after a start.

    Recovers a copy, which is removed again.  Raises Lost: that finds damage.
    """
    found: dict[str, Found] = {name: [] for name in rings}
    if not directory.is_dir():
        return found
    shutil.copytree(directory, copy)
    try:
        for place in logs_in(copy):
            if not place.is_dir():
                continue
            with Log(place, segment_bytes=SEGMENT_BYTES, retain_bytes=0) as log:
                report = log.recover()
                if report.damage:
                    raise Lost(f"a crash was taken for damage: {report}")
                for name in rings:
                    found[name] += _logged(log, name)
    finally:
        shutil.rmtree(copy)
    return {name: sorted(its) for name, its in found.items()}


def _logged(log: Log, name: str) -> Iterator[tuple[int, int]]:
    for epoch, first_offset, _ in log.epochs(name):
        offset = first_offset
        while ranges := log.read(name, epoch, offset, 1 << 20):
            for it in ranges:
                yield from _messages(bytes(it.view), epoch)
                offset = it.offset + it.count


def _messages(run: bytes, epoch: int) -> Iterator[tuple[int, int]]:
    """Place and number of each message in a run of records, all of which must verify."""
    assert scan_records(run, epoch).good_bytes == len(run)
    at = 0
    while at < len(run):
        length, _, offset, _, _, key_length, _ = RecordHeader.of(run, at)
        yield epoch << 64 | offset, number_of(run[at + payload_position(key_length, 0) : at + length])
        at += span(length)
