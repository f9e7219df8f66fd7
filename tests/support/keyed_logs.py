"""Logs of two rings whose records have topics and times, on a simulated disk that counts what is read."""

from random import Random

from persistence import Log
from ringbuf import Range
from ringbuf.record import decode, encode
from tests.support.log_simulation import run_of
from tests.support.logs import make_log
from tests.support.simfiles import SimFiles

EPOCH = 7


def keyed(
    log: Log, name: str, its: list[tuple[str, int, bytes]], first: int, position: int
) -> list[tuple[int, str, int, bytes]]:
    """Appends one run of (topic, time, payload); what a reader should find of it."""
    made = b"".join(
        encode(first + n, payload, epoch=EPOCH, key=topic.encode(), timestamp_ns=time)
        for n, (topic, time, payload) in enumerate(its)
    )
    log.append(log._ids[name], [run_of(made, EPOCH, position=position)])
    return [(first + n, *it) for n, it in enumerate(its)]


def many_topics(
    runs: int, times: list[int], *, segment_bytes: int = 8192, seed: int = 0
) -> tuple[SimFiles, Log, dict[str, list[tuple[int, str, int, bytes]]]]:
    """A log of two rings, their records of few topics; all of them, by ring."""
    random = Random(seed)
    files = SimFiles(random)
    log = make_log(files, segment_bytes=segment_bytes)
    log.recover()
    written: dict[str, list[tuple[int, str, int, bytes]]] = {"a-0": [], "b-0": []}
    clock = iter(times)
    for name in written:
        log.join(name, EPOCH, 0)
    for _ in range(runs):
        for name, its in written.items():
            batch = [
                (f"t/{random.randrange(5)}", next(clock), random.randbytes(random.randrange(90)))
                for _ in range(random.randrange(1, 6))
            ]
            its.extend(keyed(log, name, batch, len(its), 64 * len(its)))
        log.write()
        log.sync()
    return files, log, written


def topic_records(ranges: list[Range]) -> list[tuple[int, str, int, bytes]]:
    """Offset, topic, timestamp in ns and payload of each record in `ranges`."""
    found = []
    for it in ranges:
        view, count = bytes(it.view), 0
        while view:
            record, span = decode(view, it.epoch)
            found.append((record.offset, record.key.decode(), record.timestamp_ns, record.payload))
            view, count = view[span:], count + 1
        assert count == it.count
    return found


class CountingFiles(SimFiles):
    """Counts bytes that are read."""

    read_bytes = 0

    def read(self, handle: int, length: int, position: int) -> bytes:
        data = super().read(handle, length, position)
        CountingFiles.read_bytes += len(data)
        return data
