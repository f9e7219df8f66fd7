"""A kernel that gives the log no asynchronous I/O: it writes one chunk after the other, says so, and keeps
its promises.
"""

import platform
from pathlib import Path

import pytest

from edge.log.log_status import together
from persistence import Log
from tests.support.children import Child
from tests.support.logs import payloads
from tests.support.without_async_io import NUMBERS

WRITER = """
import sys
from pathlib import Path
from persistence import Log, LogThread, LoggedRing
from ringbuf import Ring
from tests.support.without_async_io import refuse_io_setup
runtime, directory, refuses = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "refused"
if refuses:
    refuse_io_setup()
log = Log(directory, segment_bytes=1 << 22, direct=True)
log.recover()
ring = Ring.create(runtime / "a-0", capacity_bytes=1 << 22, epoch=7)
writer, thread = ring.writer(), LogThread(log, [LoggedRing(ring, "disk")])
thread.start()
offset = 0
while True:
    many = 1 if offset % 5 else 300  # single records, and runs of several chunks
    for number in range(offset, offset + many):
        while writer.publish(b"%d:" % number + bytes(number % 7000)) is None:
            ring.wait_durable(writer.end_position, 1)
    offset += many
    while not ring.wait_durable(writer.end_position, 1):
        pass
    status = thread.status()
    print(offset, status["direct_block_bytes"], status["one_by_one"], flush=True)
"""


@pytest.mark.parametrize("kernel", ["refused", "given"])
def test_what_was_synced_one_chunk_after_the_other_is_there_after_kill_9(
    runtime_directory: Path, tmp_path: Path, kernel: str
) -> None:
    if platform.machine() not in NUMBERS:
        pytest.skip(f"no filter is written for {platform.machine()}")
    with Child(WRITER, runtime_directory, tmp_path, kernel) as writer:
        lines = [writer.line() for _ in range(40)]
        lines += writer.kill()
    count, block_bytes, why = lines[-1].split(" ", 2)
    if block_bytes == "0":
        pytest.skip(f"{tmp_path} is on a file system without O_DIRECT")
    assert why == ("Operation not permitted (EPERM)" if kernel == "refused" else "")
    with Log(tmp_path) as log:
        report = log.recover()
        assert (report.damage, report.notes) == ((), ())
        found = payloads(log, "a-0", 7)
    assert len(found) >= int(count) > 2000
    assert all(found[number] == b"%d:" % number + bytes(number % 7000) for number in range(len(found)))


def test_a_broker_with_several_logs_says_it_of_any() -> None:
    each = [{"one_by_one": "", "records": 1}, {"one_by_one": "no (EAGAIN)", "records": 2}]
    assert together(each)["one_by_one"] == "no (EAGAIN)"
    assert together(each[:1] * 2)["one_by_one"] == ""
