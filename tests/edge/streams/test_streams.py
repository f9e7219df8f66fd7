"""Topics to partitions, and rings from one life of the broker to the next."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from edge.config.directories import make_directory
from edge.config.directory_lock import DirectoryLock
from edge.config.schema import Config, Durability, Stream
from edge.errors import DirectoryBusy, EdgeError, RingsUnavailable
from edge.streams.epochs import Epochs, unpack_epochs
from edge.streams.ring_files import ring_to_write
from edge.streams.streams import Streams
from ringbuf import Ring
from ringbuf.ring import cursor_file, ring_file
from tests.support.children import Child
from tests.support.project import ROOT
from tests.support.waiting import PATIENCE_S

RING_BYTES = 1 << 16
OTHER_USER = 12345


@pytest.fixture
def config(runtime_directory, tmp_path):
    streams = (Stream(name="cam", topics=("cam/#",), ring_bytes=RING_BYTES, partitions=2),)
    default = Stream(name="default", topics=("#",), ring_bytes=RING_BYTES)
    return Config(runtime_dir=runtime_directory, state_dir=tmp_path, stream=(*streams, default))


@pytest.fixture
def epochs(tmp_path):
    return Epochs(tmp_path / "epochs")


def payloads(ring: Ring) -> list[bytes]:
    with ring.reader(start="oldest") as reader:
        return [bytes(record) for record in reader.read_many(10_000)]


def test_a_topic_goes_to_the_first_stream_that_has_a_filter_for_it(config, epochs):
    streams = Streams.open(config, epochs)
    assert streams.partition_of("cam/1").stream == "cam"
    assert streams.partition_of("cam").stream == "cam"
    assert streams.partition_of("camera/1").stream == "default"
    assert streams.partition_of("$SYS/uptime").stream == "default"
    assert [partition.name for partition in streams.all()] == ["cam-0", "cam-1", "default-0"]
    streams.close()


def test_a_topic_keeps_its_partition_and_many_topics_use_them_all(config, epochs):
    streams = Streams.open(config, epochs)
    first = {f"cam/{number}": streams.partition_of(f"cam/{number}").index for number in range(50)}
    assert set(first.values()) == {0, 1}
    streams.close()
    streams = Streams.open(config, epochs)
    assert {topic: streams.partition_of(topic).index for topic in first} == first
    streams.close()


def test_publishers_wait_for_a_log_unless_they_want_to_be_refused(config, epochs):
    """A disk that falls behind for milliseconds is no reason to drop anything."""
    streams = tuple(
        Stream(name=f"{durability}-{when_full}", topics=("x",), ring_bytes=RING_BYTES, durability=durability,
               when_full=when_full, queue_timeout_ms=20_000, sync_bytes=RING_BYTES // 4)
        for durability in (Durability.PROCESS, Durability.INTERVAL, Durability.DISK)
        for when_full in ("overwrite", "reject")
    )  # fmt: skip
    opened = Streams.open(msgspec.structs.replace(config, stream=streams), epochs)
    for partition in opened.all():
        with partition.ring.reader(local=True, blocks_writer=True, name="log") as log:
            while log.cursor + RING_BYTES - 2000 > partition.writer.end_position:
                assert partition.writer.publish(bytes(900)) is not None
            publishing = ThreadPoolExecutor(1)
            published = publishing.submit(partition.writer.publish, bytes(4000))
            waits = partition.stream in ("interval-overwrite", "disk-overwrite")
            if not waits:
                assert published.result() is None, partition.stream
            while log.poll() is not None:
                continue
            log.release(log.cursor)
            assert (published.result() is not None) == waits, partition.stream
            publishing.shutdown()
    opened.close()


WRITER = """
import sys
from edge.config.schema import Config, Stream
from edge.streams.epochs import Epochs
from edge.streams.streams import Streams
from pathlib import Path
run, state = map(Path, sys.argv[1:])
stream = Stream(name="default", topics=("#",), ring_bytes=1 << 16)
config = Config(runtime_dir=run, state_dir=state, stream=(stream,))
writer = Streams.open(config, Epochs(state / "epochs")).partition_of("x").writer
for number in range(1 << 30):
    offset = writer.publish(b"%d" % number, key="x")
    print(offset, flush=True)
"""


def test_a_ring_goes_on_after_kill_9_of_its_writer(config, epochs, runtime_directory, tmp_path):
    acknowledged = -1
    for _ in range(3):
        with Child(WRITER, runtime_directory, tmp_path) as child:
            for _ in range(100):
                offset = int(child.line())
                assert offset > acknowledged
                acknowledged = offset
            acknowledged = max([acknowledged, *map(int, child.kill())])
    streams = Streams.open(msgspec.structs.replace(config, stream=config.stream[-1:]), epochs)
    partition = streams.partition_of("x")
    with partition.ring.reader(start="oldest") as reader:
        offsets = [record.offset for record in reader.read_many(100_000)]
    assert offsets == list(range(offsets[0], offsets[-1] + 1))
    assert offsets[-1] >= acknowledged
    assert partition.writer.publish(b"after", key="x") == offsets[-1] + 1
    assert unpack_epochs((tmp_path / "epochs").read_bytes()) == {"default-0": partition.ring.epoch}
    streams.close()


def test_a_clean_stop_keeps_records_and_removes_empty_rings(config, epochs, runtime_directory):
    streams = Streams.open(config, epochs)
    partition = streams.partition_of("a")  # still in hand when the ring is closed
    partition.writer.publish(b"kept", key="a")
    epoch = partition.ring.epoch
    streams.close()
    assert sorted(path.name for path in runtime_directory.iterdir()) == [
        "default-0.cursors",
        "default-0.ring",
    ]
    streams = Streams.open(config, epochs)
    assert payloads(streams.partition_of("a").ring) == [b"kept"]
    assert streams.partition_of("a").ring.epoch == epoch
    streams.close()


@pytest.mark.parametrize("damage", [b"", b"BRIM", b"\0" * 20_000, os.urandom(100_000)], ids=len)
def test_a_damaged_ring_is_put_aside_and_the_start_goes_on(config, epochs, runtime_directory, caplog, damage):
    ring_file(runtime_directory / "default-0").write_bytes(damage)
    streams = Streams.open(config, epochs)
    assert streams.partition_of("a").writer.publish(b"new", key="a") == 0
    streams.close()
    assert (runtime_directory / "default-0.ring.bad").read_bytes() == damage
    assert "unusable ring file renamed" in caplog.text


def test_a_ring_under_another_name_or_of_another_version_is_put_aside(config, epochs, runtime_directory):
    with Ring.create(runtime_directory / "other-0", capacity_bytes=RING_BYTES, epoch=7) as ring:
        ring.writer().publish(b"theirs")
    for suffix in (".ring", ".cursors"):
        (runtime_directory / f"other-0{suffix}").rename(runtime_directory / f"default-0{suffix}")
    data = bytearray((runtime_directory / "default-0.ring").read_bytes())
    streams = Streams.open(config, epochs)
    assert payloads(streams.partition_of("a").ring) == []
    streams.close()
    data[8] ^= 0xFF  # the format version
    (runtime_directory / "default-0.ring").write_bytes(data)
    streams = Streams.open(config, epochs)
    assert payloads(streams.partition_of("a").ring) == []
    streams.close()


def test_a_ring_that_lost_its_cursor_file_keeps_its_records(config, epochs, runtime_directory):
    streams = Streams.open(config, epochs)
    streams.partition_of("a").writer.publish(b"x", key="a")
    streams.close()
    (runtime_directory / "default-0.cursors").unlink()
    streams = Streams.open(config, epochs)
    assert payloads(streams.partition_of("a").ring) == [b"x"]
    streams.close()


def test_a_ring_that_is_gone_begins_anew_where_the_log_ends(config, epochs):
    streams = Streams.open(config, epochs, {"default-0": (4_000_000_000, 5120)})
    ring = streams.partition_of("a").ring
    assert (ring.first_offset, ring.epoch) == (5120, 4_000_000_001)
    assert streams.partition_of("a").writer.publish(b"x", key="a") == 5120
    streams.close()


@pytest.mark.parametrize(
    ("behind", "kept"), [((0, 1), False), ((0, 0), True), ((1, 0), False), ((-1, 9), True)]
)
def test_a_ring_that_the_log_has_overtaken_is_of_an_older_life(config, epochs, behind, kept):
    streams = Streams.open(config, epochs)
    partition = streams.partition_of("a")
    partition.writer.publish(b"x", key="a")
    epoch = partition.ring.epoch
    streams.close()
    log_end = (epoch + behind[0], 1 + behind[1])
    streams = Streams.open(config, epochs, {"default-0": log_end})
    ring = streams.partition_of("a").ring
    assert (ring.epoch == epoch) is kept
    assert kept or (ring.epoch > log_end[0] and ring.first_offset == log_end[1])
    streams.close()


END = slice(0x80, 0xA8)  # of the header of a ring: where the next record goes (ringbuf/c/ring/layout.h)


@pytest.mark.parametrize("logged", [1, 2, 4])
def test_a_ring_whose_writer_was_killed_before_it_said_where_it_ends_is_not_of_an_older_life(
    config, epochs, runtime_directory, logged
):
    """The log reads what is committed, and may have had it before the end was stored."""
    streams = Streams.open(config, epochs)
    partition = streams.partition_of("a")
    partition.writer.publish(b"0", key="a")
    file = ring_file(runtime_directory / "default-0")
    end = file.read_bytes()[END]
    for number in range(1, 4):
        partition.writer.publish(b"%d" % number, key="a")
    epoch = partition.ring.epoch
    streams.close()
    with file.open("r+b") as opened:
        opened.seek(END.start)
        opened.write(end)
    streams = Streams.open(config, epochs, {"default-0": (epoch, logged)})
    partition = streams.partition_of("a")
    assert partition.ring.epoch == epoch
    assert payloads(partition.ring) == [b"0", b"1", b"2", b"3"]
    assert partition.writer.publish(b"4", key="a") == 4
    streams.close()


def test_a_ring_keeps_its_size_until_its_file_is_removed(config, epochs, caplog):
    streams = Streams.open(config, epochs)
    streams.partition_of("a").writer.publish(b"x", key="a")
    streams.close()
    larger = msgspec.structs.replace(config.stream[-1], ring_bytes=RING_BYTES * 2)
    streams = Streams.open(msgspec.structs.replace(config, stream=(larger,)), epochs)
    assert streams.partition_of("a").ring.capacity_bytes == RING_BYTES
    assert "ring keeps its size" in caplog.text
    streams.close()


def test_a_ring_that_another_process_writes_is_left_alone(config, epochs, runtime_directory):
    with Ring.create(runtime_directory / "default-0", capacity_bytes=RING_BYTES, epoch=7) as ring:
        ring.writer().publish(b"theirs")
        with pytest.raises(RingsUnavailable, match=r"default-0\.ring: written by another process"):
            Streams.open(config, epochs)
        assert payloads(ring) == [b"theirs"]


@pytest.mark.parametrize("has_ring", [True, False])
@pytest.mark.parametrize(
    "make", [os.mkdir, lambda path: os.symlink(path.name, path)], ids=["directory", "loop"]
)
def test_a_cursor_file_that_cannot_be_opened_is_named_with_its_remedy(
    config, epochs, runtime_directory, make, has_ring
):
    path = runtime_directory / "default-0"
    if has_ring:
        Ring.create(path, capacity_bytes=RING_BYTES, epoch=7).close()
        cursor_file(path).unlink()
    make(cursor_file(path))
    if not has_ring and cursor_file(path).is_symlink():
        Streams.open(config, epochs).close()  # the new ring replaces it
        return
    with pytest.raises(RingsUnavailable, match=r"default-0\.cursors: ") as caught:
        Streams.open(config, epochs)
    assert caught.value.hint == "move or remove it"


def test_a_ring_that_may_not_be_opened_is_kept_and_named(epochs, runtime_directory):
    """As after a start by root, or a wrong chmod: its records are there, and a new ring would lose them."""
    path = runtime_directory / "default-0"
    Ring.create(path, capacity_bytes=RING_BYTES, epoch=7).close()
    ring_file(path).chmod(0)
    user = os.geteuid()
    os.chown(runtime_directory, user or OTHER_USER, -1)
    os.seteuid(user or OTHER_USER)  # root may open every file
    try:
        with pytest.raises(RingsUnavailable, match=r"default-0\.ring: cannot be opened: Perm") as caught:
            ring_to_write(path, RING_BYTES, epochs, prepare=Ring.writer)
    finally:
        os.seteuid(user)
    assert caught.value.hint == "let the user of this process read and write it"
    assert ring_file(path).exists()


FULL = """
import sys
from pathlib import Path
from edge.config.schema import Config, Stream
from edge.streams.epochs import Epochs
from edge.errors import RingsUnavailable
from edge.streams.streams import Streams
run = Path(sys.argv[1])
stream = Stream(name="default", topics=("#",), ring_bytes=1 << 20, partitions=4)
try:
    Streams.open(Config(runtime_dir=run, state_dir=run, stream=(stream,)), Epochs(run / "epochs"))
except RingsUnavailable as error:
    print(error, error.hint, sorted(path.name for path in run.iterdir()))
"""


def test_no_room_in_memory_is_told_with_the_setting_to_change(tmp_path):
    """In a mount namespace of its own, with a tmpfs that holds two of four rings."""
    mount = f'mount -t tmpfs -o size=3m none {tmp_path} && exec "$0" -c "$1" {tmp_path}'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, sys.executable, FULL]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "unshare" in run.stderr or "mount" in run.stderr:
        pytest.skip(f"this machine allows no mount namespaces: {run.stderr.strip()}")
    assert "ring default-2 of 1048576 bytes cannot be created in " in run.stdout, run.stderr
    assert "lower ring_bytes or partitions" in run.stdout
    assert "['epochs', 'epochs.copy']" in run.stdout  # the two that fitted never held a record, and went


def test_a_ring_larger_than_the_limit_of_file_sizes_ends_the_start_with_its_remedy(
    runtime_directory, tmp_path
):
    """An error that was its own cause kept the start busy for ever."""
    command = (
        f"ulimit -f 60 && exec {sys.executable} -m edge run --port 0"
        f" --runtime-dir {runtime_directory} --state-dir {tmp_path}"
    )
    refused = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert refused.returncode == 2, refused.stderr
    assert "brim run: ring default-0 of " in refused.stderr
    assert "File too large" in refused.stderr
    assert "ulimit -f" in refused.stderr


LIFE = """
import logging, sys
from pathlib import Path
from edge.config.schema import Config, Stream
from edge.streams.epochs import Epochs
from edge.streams.streams import Streams
from ringbuf.ring import ring_file
logging.basicConfig(stream=sys.stdout)
run = Path(sys.argv[1])
for damaged in sys.argv[2:]:
    ring_file(run / damaged).write_bytes(bytes(1 << 20))
stream = Stream(name="default", topics=("#",), ring_bytes=1 << 20, partitions=2)
streams = Streams.open(Config(runtime_dir=run, state_dir=run, stream=(stream,)), Epochs(run / "epochs"))
for partition in streams.all():
    partition.writer.publish(b"x", key="a")
streams.close()
print(sorted(path.name for path in run.glob("*.ring*")))
"""


def test_an_unusable_ring_is_removed_if_no_memory_is_left_for_the_new_one(tmp_path):
    """In a mount namespace of its own, with a tmpfs that holds two rings and not three."""
    lives = " && ".join(f'"$0" -c "$1" {tmp_path} {damaged}' for damaged in ("", "default-0", "default-1"))
    mount = f"mount -t tmpfs -o size=3m none {tmp_path} && {lives}"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, sys.executable, LIFE]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "unshare: " in run.stderr or "mount: " in run.stderr:
        pytest.skip(f"this machine allows no mount namespaces: {run.stderr.strip()}")
    assert run.stdout.count("['default-0.ring', 'default-1.ring']") == 3, run.stdout + run.stderr
    assert run.stdout.count("unusable ring file removed") == 2


def test_one_broker_runs_on_a_directory_and_the_other_is_told_which(tmp_path):
    with DirectoryLock(tmp_path), pytest.raises(DirectoryBusy, match=f"pid {os.getpid()}") as caught:
        DirectoryLock(tmp_path)
    assert caught.value.pid == os.getpid()
    DirectoryLock(tmp_path).close()


def test_a_lock_that_is_no_regular_file_is_an_error_with_a_remedy(tmp_path):
    os.mkfifo(tmp_path / "brim.lock")
    with pytest.raises(EdgeError, match=r"brim\.lock is not a regular file") as caught:
        DirectoryLock(tmp_path)
    assert caught.value.hint == "remove it, then start the broker again"


def test_the_lock_of_a_broker_that_was_killed_is_free(tmp_path):
    code = "import sys, pathlib, time; from edge.config.directory_lock import DirectoryLock as L\n"
    code += "lock = L(pathlib.Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    with Child(code, tmp_path) as child:
        assert child.line() == "held"
        with pytest.raises(DirectoryBusy) as caught:
            DirectoryLock(tmp_path)
        assert caught.value.pid == child.pid
    DirectoryLock(tmp_path).close()


def test_a_runtime_directory_is_private_and_must_be_our_own(tmp_path):
    make_directory(tmp_path / "a" / "b", "runtime_dir")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o750
    (tmp_path / "file").write_text("")
    with pytest.raises(EdgeError, match=r"runtime_dir: .* cannot be made"):
        make_directory(tmp_path / "file", "runtime_dir")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(EdgeError, match="everybody may write to"):
        make_directory(tmp_path / "open", "runtime_dir")
    if os.geteuid() == 0:
        os.chown(tmp_path / "a" / "b", 12345, -1)
        with pytest.raises(EdgeError, match="belongs to user 12345"):
            make_directory(tmp_path / "a" / "b", "runtime_dir")
        (tmp_path / "link").symlink_to(tmp_path / "a")
        os.lchown(tmp_path / "link", 12345, -1)
        with pytest.raises(EdgeError, match="belongs to user 12345"):
            make_directory(tmp_path / "link", "runtime_dir")
