"""Extents as they stand in the file, through a socket: whoever gets them can verify all of it."""

import socket
import threading
from pathlib import Path

import pytest

from persistence import Log
from persistence.format import EXTENT_HEADER_BYTES, extent_verifies, unpack_extent
from persistence.raw import RawRun
from ringbuf.record import encode
from tests.support.log_simulation import records_in, run_of


@pytest.fixture
def log(tmp_path: Path):
    log = Log(tmp_path / "log", segment_bytes=1 << 18, retain_bytes=0)
    log.recover()
    yield log
    log.close()


def fill(log: Log, records: int) -> list[bytes]:
    its = [encode(n, bytes([n % 251]) * 300, epoch=7, key=b"t") for n in range(records)]
    ring_id = log.join("a-0", 7, 0)
    for first in range(0, records, 25):
        log.append(ring_id, [run_of(b"".join(its[first : first + 25]), 7, position=first * 352)])
        log.write()
        log.sync()
    return its


def received(log: Log, offset: int, limit_bytes: int) -> tuple[RawRun | None, bytes]:
    ours, theirs = socket.socketpair()
    found: list[bytes] = []

    def take() -> None:
        while data := theirs.recv(1 << 16):
            found.append(data)

    taker = threading.Thread(target=take)
    taker.start()
    with ours, theirs:
        run = log.reader.send_raw(ours, "a-0", 7, offset, limit_bytes)
        ours.shutdown(socket.SHUT_WR)
        taker.join()
    return run, b"".join(found)


def test_what_arrives_verifies_and_is_all_that_was_asked_for(log: Log) -> None:
    its = fill(log, 900)
    assert len(log.reader.bases()) > 1
    got: list[bytes] = []
    offset = 0
    while True:
        run, data = received(log, offset, 50_000)
        if run is None:
            break
        assert len(data) == run.length
        assert run.first_offset <= offset < run.end_offset
        view = memoryview(data)
        while view:
            header = unpack_extent(view)
            extent = view[: EXTENT_HEADER_BYTES + header.length]
            assert extent_verifies(run.seed, header, extent)
            body = bytes(extent[EXTENT_HEADER_BYTES:])
            got += [body[begin:end] for _, begin, end in records_in(body)]
            view = view[len(extent) :]
        offset = run.end_offset
    assert data == b""
    assert [it[: len(one)] for it, one in zip(its, got, strict=True)] == got


def test_a_peer_that_takes_nothing_is_not_waited_for_beyond_the_timeout(log: Log) -> None:
    fill(log, 700)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        ours.settimeout(0.05)
        with pytest.raises(TimeoutError, match="the peer took"):
            log.reader.send_raw(ours, "a-0", 7, 0, 1 << 20)


def test_there_is_nothing_to_send_behind_the_end(log: Log) -> None:
    fill(log, 10)
    assert received(log, 10, 1000) == (None, b"")
    assert received(log, 0, 1)[0] is not None
