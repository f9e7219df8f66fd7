"""Readers without a group: places, filters, a broker that is killed, and replay by time."""

import datetime as dt
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import brim
import brim.asyncio
from edge.consumers.client_socket import RequestClient
from edge.consumers.protocol import (
    VERSION,
    BatchInfo,
    Code,
    Failed,
    Read,
    Records,
    RequestMessage,
    RingInfo,
    RingList,
    Rings,
)
from edge.consumers.reader_state import ReaderCore
from edge.errors import BrokerUnreachable, InvalidArgument, NotOpen, Refused
from edge.local.shm_subscription import Place
from ringbuf import Ring
from tests.support.brim_process import BrimProcess
from tests.support.consumer_desk import texts
from tests.support.waiting import PATIENCE_S, wait_until


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> Iterator[BrimProcess]:
    with BrimProcess(runtime_directory, tmp_path, bridge=False) as running:
        yield running


def put(broker: BrimProcess, *numbers: int, topic: str = "a/1") -> None:
    letters = [(brim.Letter(topic), str(number)) for number in numbers]
    assert brim.publish(letters, runtime_dir=broker.runtime_dir) == len(numbers)


def taken(reader: brim.PartitionReader, count: int) -> list[bytes]:
    payloads: list[bytes] = []
    while len(payloads) < count:
        batch = reader.read(PATIENCE_S)
        assert batch is not None
        payloads += map(bytes, batch)
    return payloads


def test_a_reader_continues_at_the_place_that_the_program_kept(broker: BrimProcess) -> None:
    where = broker.runtime_dir
    put(broker, 0, 1, 2)
    with brim.reader("a/#", start="oldest", runtime_dir=where) as reader:
        batch = reader.read(PATIENCE_S)
        assert batch is not None
        assert (batch.ring, batch.offset, batch.next, len(batch)) == ("default-0", 0, (batch.epoch, 3), 3)
        assert (list(map(bytes, batch)), bytes(batch[1])) == (texts(0, 1, 2), b"1")
        assert reader.places() == {"default-0": batch.next}
    put(broker, 3)
    with brim.reader("a/#", start={"default-0": (batch.epoch, 2)}, runtime_dir=where) as reader:
        assert taken(reader, 2) == texts(2, 3)
        put(broker, 4)
        assert taken(reader, 1) == texts(4)
        assert reader.read(0.0) is None
    with brim.reader("a/#", runtime_dir=where) as reader:
        put(broker, 5)
        assert taken(reader, 1) == texts(5), "by default a reader begins at the end"


def test_a_reader_begins_at_a_time_and_gets_only_topics_of_its_filters(broker: BrimProcess) -> None:
    put(broker, 0, 1)
    moment = dt.datetime.now(dt.UTC)
    put(broker, 2, 3)
    put(broker, 4, topic="b/1")
    put(broker, 5)
    with brim.reader(["a/+", "c"], start=moment, runtime_dir=broker.runtime_dir) as reader:
        assert taken(reader, 3) == texts(2, 3, 5)


async def test_with_asyncio_it_is_the_same(broker: BrimProcess) -> None:
    put(broker, 0)
    async with brim.asyncio.reader("a/#", start="oldest", runtime_dir=broker.runtime_dir) as reader:
        first = await reader.read(PATIENCE_S)
        assert first is not None
        put(broker, 1)
        async for batch in reader:
            assert list(map(bytes, batch)) == texts(1)
            break
        assert await reader.read(0.0) is None
        assert reader.places() == {"default-0": (first.epoch, 2)}


def test_a_killed_broker_neither_repeats_nor_skips_records(broker: BrimProcess) -> None:
    with brim.reader("a/#", start="oldest", runtime_dir=broker.runtime_dir) as reader:
        for number in range(4):
            put(broker, 2 * number, 2 * number + 1)
            assert taken(reader, 2) == texts(2 * number, 2 * number + 1)
            broker.kill()
            broker.start()
        assert reader.lost == 0


def test_a_reader_reports_what_the_ring_no_longer_has(runtime_directory: Path, tmp_path: Path) -> None:
    settings = '[[stream]]\nname = "small"\ntopics = ["a/#"]\nring_bytes = 65536\npartitions = 1\n'
    with BrimProcess(runtime_directory, tmp_path, settings, bridge=False) as broker:
        for number in range(200):
            letters = [(brim.Letter("a/1"), f"{number}".zfill(1_000))]
            brim.publish(letters, runtime_dir=broker.runtime_dir)
        with brim.reader("a/#", start={"small-0": (0, 0)}, runtime_dir=broker.runtime_dir) as reader:
            epochs = {ring.epoch for ring in _rings(broker)}
            batch = reader.read(PATIENCE_S)
            assert batch is not None
            assert epochs == {batch.epoch}
            assert (batch.lost, reader.lost) == (batch.offset, batch.offset)
            assert batch.lost > 0


def _rings(broker: BrimProcess) -> tuple[RingInfo, ...]:
    with RequestClient(broker.runtime_dir) as client:
        return client.request(Rings(client.number(), VERSION, ("a/#",)), RingList)[0].rings


LAST = dt.datetime.fromisoformat("9999-12-31T23:59:59.999999")  # without a zone
FIRST = dt.datetime.fromisoformat("0001-01-01")
FUTURE = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"start": "newest"}, r"invalid start 'newest' \(allowed: 'oldest', 'latest'"),
        ({"start": 5}, "invalid start 5"),
        ({"start": FUTURE}, r"start 2\d{3}-.* is in the future \(allowed: up to 2\d{3}-.*Z\)"),
        ({"start": LAST}, "invalid time 9999-.* \\(allowed: 1970-01-01T00:00:00Z to 2262-"),
        ({"start": dt.datetime.max.replace(tzinfo=dt.UTC)}, "invalid time 9999-"),
        ({"start": FIRST}, "invalid time 0001-01-01"),
        ({"start": {"some-0": (1, 1 << 63)}}, "invalid offset in some-0 9223372036854775808"),
        ({"start": {"some-0": (-1, 0)}}, "invalid epoch of some-0 -1"),
        ({"speed": 0}, r"invalid speed 0 \(allowed: 0.001 to 1000000\)"),
        ({"speed": 1e7}, "invalid speed 10000000.0"),
        ({"speed": 1e300}, "invalid speed 1e"),
        ({"speed": float("nan")}, "invalid speed nan"),
        ({"speed": float("inf")}, "invalid speed inf"),
        ({"batch_bytes": 0}, "invalid batch_bytes 0"),
        ({"batch_bytes": 1 << 30}, "invalid batch_bytes 1073741824"),
    ],
)
def test_invalid_arguments_are_refused(options: dict[str, Any], text: str) -> None:
    for reader in (brim.reader, brim.asyncio.reader):
        with pytest.raises(InvalidArgument, match=text):
            reader("a/#", **options)


def test_without_a_broker_entering_fails(runtime_directory: Path) -> None:
    with (
        pytest.raises(BrokerUnreachable),
        brim.reader("a/#", runtime_dir=runtime_directory, connect_timeout_s=0.1),
    ):
        pass


# ---- the core, with answers of the test ----


class Conversation:
    """A core that the test answers; the clock stands still."""

    def __init__(self, runtime_directory: Path, rings: int = 1, **how: Any) -> None:
        self.now_s = 100.0
        self.core = ReaderCore(("a/#",), how.pop("start", "oldest"), how.pop("speed", None), 1 << 20)
        self.rings = [
            Ring.create(runtime_directory / f"r-{i}", capacity_bytes=1 << 16, epoch=1) for i in range(rings)
        ]
        (request,) = self.requests()
        infos = tuple(RingInfo(f"r-{i}", "some", 1, 0, 0) for i in range(rings))
        self.core.take(RingList(request.id, infos), [], self.now_s)

    def requests(self) -> list[RequestMessage]:
        return self.core.requests(self.now_s, connected=True)

    def reads(self) -> dict[str, Read]:
        return {it.ring: it for it in self.requests() if isinstance(it, Read)}

    def close(self) -> None:
        for ring in self.rings:
            ring.close()


@pytest.fixture
def conversation(runtime_directory: Path) -> Iterator[Any]:
    made: list[Conversation] = []

    def make(**how: Any) -> Conversation:
        made.append(Conversation(runtime_directory, **how))
        return made[-1]

    yield make
    for it in made:
        it.close()


def records(ring: Ring) -> tuple[int, bytes]:
    """Number and bytes of its records."""
    (part,) = ring.reader(with_slot=False, start="oldest").ranges(1 << 20)
    return part.count, bytes(part.view)


def pass_a_millisecond() -> None:
    """Of the clock that records have."""
    begun_ns = time.time_ns()
    wait_until(lambda: time.time_ns() > begun_ns + 1_000_000)


def give(talk: Conversation, read: Read, count: int, data: bytes) -> None:
    info = BatchInfo(read.ring, 1, 0, count)
    talk.core.take(Records(read.id, 1, count, info), [data], talk.now_s)


def test_an_answer_without_progress_that_comes_at_once_is_not_repeated_at_once(conversation: Any) -> None:
    talk = conversation(start={"r-0": (1, 0)})
    read = talk.reads()["r-0"]
    talk.core.take(Records(read.id, 1, 0), [], talk.now_s)
    assert talk.reads() == {}
    talk.now_s += 0.3
    assert talk.reads()["r-0"].offset == 0


def test_a_full_broker_is_given_time_and_an_unknown_ring_too(conversation: Any) -> None:
    talk = conversation()
    pauses: dict[Code, float] = {"full": 0.3, "unknown": 2.1, "refused": 2.1}
    for code, pause_s in pauses.items():
        read = talk.reads()["r-0"]
        talk.core.take(Failed(read.id, "no", code), [], talk.now_s)
        talk.now_s += pause_s - 0.2
        assert talk.reads() == {}
        talk.now_s += 0.2


def test_a_broker_that_does_not_answer_is_requested_again_at_the_same_place(conversation: Any) -> None:
    talk = conversation()
    talk.rings[0].writer().publish("0", key="a/1")
    give(talk, talk.reads()["r-0"], *records(talk.rings[0]))
    assert talk.reads() == {}, "one batch of a ring at most"
    assert talk.core.next_batch(talk.now_s).next == Place(1, 1)
    assert talk.reads()["r-0"].offset == 1
    talk.now_s += 3.0
    assert [type(it) for it in talk.requests()] == [Rings]
    talk.now_s += 3.0
    again = talk.requests()
    assert {type(it) for it in again} == {Rings, Read}
    assert [it.offset for it in again if isinstance(it, Read)] == [1]


def test_a_read_of_a_slow_log_is_neither_repeated_nor_dropped_while_the_broker_answers(
    conversation: Any,
) -> None:
    talk = conversation()
    read, rings = talk.reads()["r-0"], (RingInfo("r-0", "some", 1, 0, 0),)
    for _ in range(10):
        talk.now_s += 2.1
        (request,) = talk.requests()
        talk.core.take(RingList(request.id, rings), [], talk.now_s)
    talk.core.take(Records(read.id, 1, 7), [], talk.now_s)
    assert talk.core.places() == {"r-0": Place(1, 7)}


def test_damaged_records_are_lost_and_the_reader_continues_behind_them(conversation: Any) -> None:
    talk = conversation()
    talk.rings[0].writer().publish("0", key="a/1")
    count, data = records(talk.rings[0])
    give(talk, talk.reads()["r-0"], count, data[:-40] + bytes(40))
    assert (talk.core.next_batch(talk.now_s), talk.core.lost) == (None, 1)
    assert talk.reads()["r-0"].offset == 1


def test_replay_keeps_the_times_between_records_and_merges_partitions(conversation: Any) -> None:
    """The clock of the reader stands still; records were written with pauses by the clock of the machine."""
    talk = conversation(rings=2, speed=2.0)
    stamps: list[tuple[int, bytes]] = []
    for number in range(6):
        talk.rings[number % 2].writer().publish(str(number), key="a/1")
        last = talk.rings[number % 2].extremes().end_offset
        assert last == number // 2 + 1
        pass_a_millisecond()
    reads = talk.reads()
    for name, ring in zip(("r-0", "r-1"), talk.rings, strict=True):
        assert talk.core.next_batch(talk.now_s) is None, "the clock begins when all have answered"
        give(talk, reads[name], *records(ring))
    for ring in talk.rings:
        reader = ring.reader(with_slot=False, start="oldest")
        stamps += [(it.timestamp_ns, bytes(it)) for it in reader.read_many(10)]
        reader.close()
    begun_s, (first_ns, first) = talk.now_s, min(stamps)
    assert list(map(bytes, talk.core.next_batch(begun_s))) == [first]
    for due_ns, payload in sorted(stamps)[1:]:
        due_s = begun_s + (due_ns - first_ns) / 1e9 / 2.0
        assert talk.core.next_batch(due_s - 1e-5) is None
        batch = talk.core.next_batch(due_s + 1e-5)
        assert list(map(bytes, batch)) == [payload]
        assert (batch.offset, batch.next) == (batch[0].offset, (1, batch[0].offset + 1))
        assert talk.core.places()[batch.ring] == batch.next
    assert talk.core.places() == {"r-0": (1, 3), "r-1": (1, 3)}


@pytest.mark.parametrize("speed", [None, 1e6])
def test_a_batch_that_waits_for_the_program_keeps_no_thread_busy(conversation: Any, speed: float) -> None:
    talk = conversation(speed=speed)
    talk.rings[0].writer().publish("0", key="a/1")
    give(talk, talk.reads()["r-0"], *records(talk.rings[0]))
    assert talk.core.due_s(talk.now_s) > talk.now_s + 0.1
    assert talk.core.next_batch(talk.now_s) is not None
    assert talk.core.due_s(talk.now_s) <= talk.now_s, "the next read is due"


def test_replay_of_records_that_are_due_together_is_one_batch(conversation: Any) -> None:
    talk = conversation(speed=1e6)
    for number in range(50):
        talk.rings[0].writer().publish(str(number), key="a/1")
    give(talk, talk.reads()["r-0"], *records(talk.rings[0]))
    assert talk.core.next_batch(talk.now_s) is not None
    rest = talk.core.next_batch(talk.now_s + 1.0)
    assert rest.next == Place(1, 50)


def test_filters_that_the_broker_refuses_are_an_error_on_entering() -> None:
    core = ReaderCore(("a/#",), "oldest", None, 1)
    (request,) = core.requests(0.0, connected=True)
    core.take(Failed(request.id, "no"), [], 0.0)
    assert isinstance(core.refusal, Refused)


def test_a_reader_that_is_not_open_names_itself() -> None:
    with pytest.raises(NotOpen, match="the reader is not open"):
        next(iter(brim.reader("a/#")))
