"""Into a sink that takes records: filtered, renamed, transformed, in their order, each at least once."""

import base64
import json
import os
import resource
import socket
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from bridge.drain.bridge import Bridge
from bridge.drain.control_socket import Backfill, Pause, Resume, Skip, send, state_of
from bridge.drain.dead_letters import DeadLetters
from bridge.drain.transform import TransformedRecord
from bridge.errors import (
    BadName,
    BadTransform,
    BridgeUnreachable,
    InvalidCommand,
    SinkBlocked,
    SinkUnavailable,
)
from bridge.format.sink_batch import Rejected, SinkBatch
from bridge.format.sink_batch import SinkRecord as AnyMessage
from tests.support.bridges import EPOCH, commanded, drain, publish, ring, run_dry, settings
from tests.support.small_disk import fill, small_disk
from tests.support.waiting import PATIENCE_S, wait_until


class Queue:
    """A queue that keeps what it is sent, and answers when the test says so, or at once."""

    url = "queue://here"

    def __init__(self) -> None:
        self.messages: list[tuple[int, bytes, bytes]] = []
        self.batches: list[SinkBatch] = []
        self.down: list[bool] = []  # of the batches to come
        self.refuses: set[int] = set()
        self.begins = 0
        self.waits = False
        self.waiting: list[tuple[SinkBatch, Future[Sequence[Rejected]]]] = []

    def begin(self, edge: str) -> None:
        assert edge == "edge-1"
        self.begins += 1

    def send(self, records: SinkBatch) -> Future[Sequence[Rejected]]:
        future: Future[Sequence[Rejected]] = Future()
        self.batches.append(records)
        if self.waits:
            self.waiting.append((records, future))
        else:
            self.answer(records, future)
        return future

    def answer(self, records: SinkBatch, future: Future[Sequence[Rejected]]) -> None:
        if self.down and self.down.pop(0):
            future.set_exception(SinkUnavailable("down"))
            return
        for it in records:
            if it.offset not in self.refuses:
                self.messages.append((it.offset, records.topic_of(it.key), it.bytes()))
        future.set_result([Rejected(it.offset, "too strange") for it in records if it.offset in self.refuses])

    def close(self) -> None:
        """Nothing to give back."""


def offsets(sink: Queue) -> list[int]:
    return [offset for offset, _, _ in sink.messages]


def test_topics_are_chosen_and_renamed_and_what_is_left_out_is_done_with(
    runtime_directory: Path, tmp_path: Path
) -> None:
    sink = Queue()
    chosen = settings(
        runtime_directory,
        tmp_path,
        topics=("plant/#",),
        topics_not=("plant/+/debug",),
        remap={"plant/": "site-7/", "plant/2/": "annex/"},
    )
    with ring(runtime_directory) as made, drain(chosen, sink) as drained:
        for topic in ("plant/1/temp", "office/1", "plant/1/debug", "plant/2/temp"):
            publish(made, 3, topic=topic)
        run_dry(drained)
        assert drained.checkpoint.cursors["default", 0].next_offset == 12
        publish(made, 2, topic="office/1")
        run_dry(drained)
        assert drained.checkpoint.cursors["default", 0].next_offset == 14
    topics = [(offset, topic) for offset, topic, _ in sink.messages]
    assert topics == [(0, b"site-7/1/temp"), (1, b"site-7/1/temp"), (2, b"site-7/1/temp"),
                      (9, b"annex/temp"), (10, b"annex/temp"), (11, b"annex/temp")]  # fmt: skip


def test_after_a_failure_all_that_was_not_acknowledged_comes_again_in_its_order(
    runtime_directory: Path, tmp_path: Path
) -> None:
    sink = Queue()
    sink.waits = True
    chosen = settings(runtime_directory, tmp_path, window=4, file_bytes=4096)
    with ring(runtime_directory, capacity_bytes=1 << 18) as made, drain(chosen, sink) as drained:
        publish(made, 300)
        while drained.in_flight < 4:
            drained.step()
        one, two, three, four = sink.waiting
        sink.answer(*three)
        sink.answer(*one)
        sink.down = [True]
        sink.answer(*two)
        with pytest.raises(SinkUnavailable):
            drained.step()
        assert drained.step() > 0  # until all are settled
        sink.waits = False
        sink.answer(*four)
        run_dry(drained)
    assert [it.first_offset for it in sink.batches] == [0, 64, 128, 192, 64, 128, 192, 256]
    assert sorted(set(offsets(sink))) == list(range(300))
    assert sink.begins == 2


def test_the_order_is_kept_when_there_is_no_room_for_a_dead_letter_as_another_batch_fails(
    runtime_directory: Path, tmp_path: Path
) -> None:
    sink = Queue()
    sink.waits = True
    sink.refuses = {3}
    chosen = settings(runtime_directory, tmp_path, window=4, file_bytes=4096, dead_letters_bytes=1000)
    with ring(runtime_directory, capacity_bytes=1 << 18) as made, drain(chosen, sink) as drained:
        publish(made, 300)
        while drained.in_flight < 4:
            drained.step()
        chosen.dead_letters_path.write_bytes(b"." * 1000)
        one, two, *others = sink.waiting
        for it in (one, *others):
            sink.answer(*it)
        sink.down = [True]
        sink.answer(*two)
        with pytest.raises(SinkBlocked, match="dead_letters_bytes = 1000"):
            drained.step()
        chosen.dead_letters_path.unlink()
        sink.waits = False
        run_dry(drained)
    assert [it.first_offset for it in sink.batches] == [0, 64, 128, 192, 64, 128, 192, 256]
    assert (drained.totals.dead_letters, drained.totals.retries) == (1, 1)


def test_what_was_acknowledged_is_not_sent_again_by_the_next_process(
    runtime_directory: Path, tmp_path: Path
) -> None:
    sink = Queue()
    with ring(runtime_directory) as made:
        for _ in range(3):
            publish(made, 50)
            with drain(settings(runtime_directory, tmp_path), sink) as drained:
                run_dry(drained)
    assert offsets(sink) == list(range(150))


def test_what_the_sink_never_takes_is_a_dead_letter_with_the_reason(
    runtime_directory: Path, tmp_path: Path
) -> None:
    sink = Queue()
    sink.refuses = {3, 17}
    chosen = settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made, drain(chosen, sink) as drained:
        publish(made, 20)
        run_dry(drained)
        assert drained.totals.dead_letters == 2
    letters = [json.loads(line) for line in chosen.dead_letters_path.read_text().splitlines()]
    assert [(it["offset"], it["reason"], it["topic"]) for it in letters] == [
        (3, "too strange", "plant/1"), (17, "too strange", "plant/1")]  # fmt: skip
    assert (letters[0]["epoch"], letters[0]["stream"]) == (EPOCH, "default")
    assert base64.b64decode(letters[1]["payload"]) == b"17".rjust(20, b".")
    assert len(offsets(sink)) == 18


def test_a_full_file_of_dead_letters_stops_the_bridge_and_loses_none(
    runtime_directory: Path, tmp_path: Path
) -> None:
    sink = Queue()
    sink.refuses = {3}
    chosen = settings(runtime_directory, tmp_path, dead_letters_bytes=10)
    with ring(runtime_directory) as made, drain(chosen, sink) as drained:
        publish(made, 20)
        with pytest.raises(SinkBlocked, match="dead_letters_bytes = 10") as caught:
            run_dry(drained)
        assert "move the file away" in caught.value.hint
    with drain(settings(runtime_directory, tmp_path), sink) as drained:
        run_dry(drained)
    assert len(chosen.dead_letters_path.read_text().splitlines()) == 1


@pytest.mark.parametrize("room", [-1, 0])
def test_a_file_of_dead_letters_may_have_exactly_the_bytes_of_its_limit(
    runtime_directory: Path, tmp_path: Path, room: int
) -> None:
    sink = Queue()
    sink.refuses = {3, 4}
    chosen = settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made, drain(chosen, sink) as drained:
        publish(made, 4)
        run_dry(drained)
        length = chosen.dead_letters_path.stat().st_size  # of one letter; the next one is as long
        drained.dead_letters = DeadLetters(replace(chosen, dead_letters_bytes=2 * length + room))
        publish(made, 1)
        with nullcontext() if room == 0 else pytest.raises(SinkBlocked, match=f"{length} bytes of dead"):
            run_dry(drained)
    assert chosen.dead_letters_path.stat().st_size == (2 * length if room == 0 else length)


def test_a_dead_letter_is_on_the_disk_before_the_cursor_moves(
    runtime_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, synced = Queue(), list[tuple[int, int]]()
    sink.refuses = {3}
    sync = os.fdatasync

    def sync_and_note(fd: int) -> None:
        sync(fd)
        if os.readlink(f"/proc/self/fd/{fd}") == str(chosen.dead_letters_path):
            cursor = drained.checkpoint.cursors["default", 0]
            synced.append((os.fstat(fd).st_size, cursor.next_offset))

    chosen = settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made, drain(chosen, sink) as drained:
        monkeypatch.setattr(os, "fdatasync", sync_and_note)
        publish(made, 20)
        run_dry(drained)
    assert synced == [(chosen.dead_letters_path.stat().st_size, 0)]


def test_a_dead_letter_for_which_there_is_half_the_room_is_not_taken_for_kept(
    runtime_directory: Path, tmp_path: Path
) -> None:
    sink = Queue()
    sink.refuses = {3}
    chosen = settings(runtime_directory, tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ring(runtime_directory) as made, drain(chosen, sink) as drained:
        publish(made, 20)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        try:
            with pytest.raises(SinkUnavailable, match="File too large"):
                run_dry(drained)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        run_dry(drained)
    (letter,) = [json.loads(line) for line in chosen.dead_letters_path.read_text().splitlines()]
    assert letter["offset"] == 3


def test_a_bridge_continues_by_itself_when_the_disk_has_room_for_a_dead_letter(
    runtime_directory: Path, tmp_path: Path
) -> None:
    sink = Queue()
    sink.refuses = {3}
    with ring(runtime_directory) as made, small_disk(tmp_path / "state", 1 << 20) as disk:
        bridge = Bridge(settings(runtime_directory, tmp_path), sink=sink)
        bridge.start()
        publish(made, 3)
        wait_until(lambda: bridge.state().totals.records == 3)
        filler = fill(disk)
        publish(made, 10)
        wait_until(lambda: "dead.jsonl: No space left on device" in bridge.state().last_error)
        assert bridge.state().remedy == "free space on that disk"
        filler.unlink()
        wait_until(lambda: bridge.state().totals.records == 13)
        assert bridge.state().totals.dead_letters == 1
        assert bridge.stop()
    assert offsets(sink)[-1] == 12


def louder(records: Sequence[AnyMessage]) -> Iterable[AnyMessage]:
    """A plug-in: every second record, in other words, of which some cannot be said."""
    for record in records:
        number = int(record.bytes().strip(b"."))
        if number == 6:
            raise ValueError("six")
        if number % 2 == 0:
            yield TransformedRecord.like(record, key=b"loud/" + record.key, payload=b"%d!" % number)


def test_a_plug_in_makes_other_records_and_what_it_fails_with_is_a_dead_letter(
    runtime_directory: Path, tmp_path: Path
) -> None:
    sink = Queue()
    chosen = settings(runtime_directory, tmp_path, transform=f"{__name__}:louder")
    with ring(runtime_directory) as made, drain(chosen, sink) as drained:
        publish(made, 10)
        run_dry(drained)
    assert sink.messages == [(it, b"loud/plant/1", b"%d!" % it) for it in (0, 2, 4, 8)]
    (letter,) = [json.loads(line) for line in chosen.dead_letters_path.read_text().splitlines()]
    assert (letter["offset"], letter["reason"]) == (6, "the transform: ValueError('six')")


def wordy(records: Sequence[AnyMessage]) -> Iterable[AnyMessage]:
    """A plug-in that makes text where bytes are wanted, of some records."""
    for record in records:
        number = int(record.bytes().strip(b"."))
        text: Any = str(number)
        yield {
            3: TransformedRecord.like(record, payload=text),
            5: TransformedRecord.like(record, key=text),
            7: text,
            8: replace(TransformedRecord.like(record), offset=1_000),
        }.get(number, TransformedRecord.like(record, payload=b"x"))


def test_what_a_plug_in_makes_that_is_no_message_is_a_dead_letter(
    runtime_directory: Path, tmp_path: Path
) -> None:
    sink = Queue()
    chosen = settings(runtime_directory, tmp_path, transform=f"{__name__}:wordy")
    with ring(runtime_directory) as made, drain(chosen, sink) as drained:
        publish(made, 10)
        run_dry(drained)
    assert offsets(sink) == [0, 1, 2, 4, 6, 9]
    letters = [json.loads(line) for line in chosen.dead_letters_path.read_text().splitlines()]
    assert {it["offset"]: it["reason"] for it in letters} == {
        3: "the transform: TypeError('payload is a str, and must be bytes')",
        5: "the transform: TypeError('key is a str, and must be bytes')",
        7: "the transform: TypeError('returned a str (allowed: TransformedRecord)')",
        8: "the transform: ValueError('returned offset 1000 for offset 8')",
    }


@pytest.mark.parametrize("name", ["no.such.module:x", f"{__name__}:nothing", "not-an-entry-point", "os:sep"])
def test_a_plug_in_that_is_none_is_told_at_the_start(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadTransform, match="transform"):
        Bridge(settings(tmp_path, tmp_path, transform=name), sink=Queue())


def test_files_hold_whole_streams(tmp_path: Path) -> None:
    with pytest.raises(BadName, match="no topics, remap or transform"):
        Bridge(settings(tmp_path, tmp_path, topics=("a/#",)))


# ---- told what to do ----


@pytest.fixture
def bridge(runtime_directory: Path, tmp_path: Path) -> Iterator[Bridge]:
    made = Bridge(settings(runtime_directory, tmp_path, stall_s=1), sink=Queue())
    made.start()
    with commanded(made):
        yield made
    assert made.stop(20)


def test_a_bridge_is_told_by_its_socket(bridge: Bridge, runtime_directory: Path) -> None:
    with ring(runtime_directory) as made:
        publish(made, 10)
        wait_until(lambda: state_of(runtime_directory, "lake")["totals"]["records"] == 10)
        assert send(runtime_directory, "lake", Pause()) == ("bridge lake paused",)
        publish(made, 5)
        assert send(runtime_directory, "lake", Skip()) == (
            "default-0: 5 records are skipped, offsets 10 to 14",
        )
        assert send(runtime_directory, "lake", Resume()) == ("bridge lake resumed",)
        said = send(runtime_directory, "lake", Backfill("default", 0, 12))
        assert said == ("default-0: offsets 12 to 14 are drained again",)
        wait_until(lambda: bridge.state().totals.records == 13)
        for stream in ("no", "default"):
            with pytest.raises(InvalidCommand):
                send(runtime_directory, "lake", Backfill(stream, 0, 99))
    with pytest.raises(BridgeUnreachable, match="bridge other"):
        state_of(runtime_directory, "other")


WRONG: list[dict[str, object]] = [
    {"op": "dance"},
    {"op": "skip", "stream": 7},
    {"op": "skip", "partition": "0"},
    {"op": "skip", "partition": [0]},
    {"op": "skip", "partition": -1},
    {"op": "skip", "offset": 3},
    {"op": "backfill", "stream": ["default"], "partition": 0, "first_offset": 0},
    {"op": "backfill", "stream": "default", "partition": {}, "first_offset": 0},
    {"op": "backfill", "stream": "default", "partition": False, "first_offset": 0},
    {"op": "backfill", "stream": "default", "partition": 0, "first_offset": "0"},
    {"op": "backfill", "stream": "default", "partition": 0, "first_offset": 1.5},
    {"op": "backfill", "stream": "default", "partition": 0, "first_offset": None},
    {"op": "backfill", "stream": "default"},
    {"op": ["skip"]},
    {"op": "pause", "stream": "default"},
    {"do": "skip", "version": 1},
]


def test_whatever_an_order_holds_it_is_answered_and_the_bridge_goes_on(
    bridge: Bridge, runtime_directory: Path
) -> None:
    with ring(runtime_directory) as made:
        publish(made, 10)
        wait_until(lambda: bridge.state().totals.records == 10)
        for wrong in WRONG:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
                asking.connect(str(runtime_directory / "bridge-lake.sock"))
                asking.send(msgpack.packb({"version": 2, **wrong}))
                assert msgpack.unpackb(asking.recv(1 << 20))["op"] == "failed", wrong
        publish(made, 5)
        wait_until(lambda: bridge.state().totals.records == 15)


def test_an_order_that_fails_by_a_mistake_of_ours_ends_nobody(
    bridge: Bridge, runtime_directory: Path
) -> None:
    with ring(runtime_directory) as made:
        publish(made, 10)
        wait_until(lambda: bridge.state().totals.records == 10)
        with pytest.raises(InvalidCommand, match="the command failed: TypeError"):
            bridge.backfill("default", 0, "nine").result(PATIENCE_S)  # type: ignore[arg-type]
        assert bridge.resume().result(PATIENCE_S) == ["bridge lake resumed"]


def test_a_pause_outlives_the_process(runtime_directory: Path, tmp_path: Path) -> None:
    chosen = settings(runtime_directory, tmp_path)
    for told in ("pause", "resume"):
        made = Bridge(chosen, sink=Queue())
        made.start()
        assert getattr(made, told)().result(PATIENCE_S)
        assert made.stop(20)
        again = Bridge(chosen, sink=Queue())
        again.start()
        wait_until(lambda told=told, again=again:  # type: ignore[misc]
                   again.state().condition == ("paused" if told == "pause" else "idle"))  # fmt: skip
        assert again.stop(20)


def test_a_cursor_that_does_not_move_is_told_of(
    bridge: Bridge, runtime_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = bridge._sink
    assert isinstance(sink, Queue)
    sink.waits = True
    with ring(runtime_directory) as made:
        publish(made, 10)
        wait_until(lambda: bridge.state().stalled_s > 1)
        wait_until(lambda: "bridge stalled name=lake waiting_records=10" in caplog.text)
        for waiting in sink.waiting:
            sink.answer(*waiting)
        sink.waits = False
        wait_until(lambda: bridge.state().lag_records == 0)
        assert bridge.state().stalled_s == 0
