"""The spill file: what it keeps over a kill, a stop and damage, and how much memory it takes."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from edge.engine.engine import EngineLimits
from edge.mqtt import Disconnect, PubAck, Publish, PubRec, PubRel, Subscribe, Subscription
from edge.session_store.spill_file import SPILL_NAME, SpillReport
from tests.support.away_client import away, back
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench, Wire
from tests.support.project import ROOT

GOLDEN = ROOT / "tests" / "golden" / "state" / "sessions-v2.spill"
RING_BYTES = 64 << 10
BODY = 400
LAP = RING_BYTES // BODY  # more than once around
UNIT_BYTES = 64 << 10  # of the file: ringbuf/c/mqtt/out/spill_file.h
HEADER_BYTES, COPY_AT, PAGE_BYTES = 28, 32 << 10, 4 << 10


@pytest.fixture
def lives() -> Iterator[Lives]:
    with Lives(journal_bytes=1 << 20, capacity_bytes=RING_BYTES) as made:
        yield made


def publish(bench: Bench, numbers: range, topic: str = "t/a", qos: int = 1) -> None:
    publisher = bench.client("p")
    for n in numbers:
        publisher.send(Publish(topic, b"%d " % n + bytes(BODY), qos, packet_id=1))
        if qos == 2:
            publisher.send(PubRel(1))
        publisher.bytes_received()
    publisher.drop()


def numbers(client: Wire) -> list[int]:
    """All that there is for it, acknowledged."""
    found: list[int] = []
    while packets := [it for it in client.received() if isinstance(it, Publish)]:
        found += [int(bytes(it.payload).split()[0]) for it in packets]
        client.send(*(PubAck(it.packet_id) if it.qos == 1 else PubRec(it.packet_id) for it in packets))
    return found


def now(bench: Bench, name: str) -> int:
    return bench.stats.gauges()[name]


def replace(file: Path, data: bytes | bytearray) -> None:
    """Another file in its place: the engine of an earlier life may still have it mapped."""
    file.unlink()
    file.write_bytes(data)


# ---- kept ----


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_copies_outlive_the_broker_and_are_shared_by_all_sessions(end: str, lives: Lives) -> None:
    bench = lives.start()
    for name in ("one", "two"):
        away(bench, name)
    publish(bench, range(6 * LAP))
    records = now(bench, "spilled_records")
    assert records > 4 * LAP
    lives.kill() if end == "kill" else lives.stop()
    bench = lives.start()
    assert lives.restored is not None
    assert lives.restored.lost == 0
    assert records - LAP < now(bench, "spilled_records") <= records  # the ring has some of them, too
    for name in ("one", "two"):
        assert numbers(back(bench, name)) == list(range(6 * LAP))
    assert now(bench, "spilled_bytes") == now(bench, "spilled_records") == 0


def test_what_was_in_flight_goes_out_again_from_its_copy_after_two_kills(lives: Lives) -> None:
    bench = lives.start()
    away(bench, "c", qos=2)
    publish(bench, range(20), qos=2)
    client = back(bench, "c")
    first = [it for it in client.received() if isinstance(it, Publish)]
    client.send(PubRec(first[0].packet_id))  # its PUBREL may be lost, its PUBLISH must not come again
    client.received()
    client.drop()
    publish(bench, range(20, 4 * LAP), qos=1)
    lives.restart()
    bench = lives.restart()
    client = back(bench, "c")
    packets = client.received()
    assert [it.packet_id for it in packets if isinstance(it, PubRel)] == [first[0].packet_id]
    again = [it for it in packets if isinstance(it, Publish) and it.dup]
    assert [it.packet_id for it in again] == [it.packet_id for it in first[1:]]
    assert [int(bytes(it.payload).split()[0]) for it in again] == list(range(1, len(first)))


def test_what_a_group_waits_for_outlives_a_kill(lives: Lives) -> None:
    bench = lives.start()
    member = bench.client("one", clean_start=False)
    member.send(Subscribe(1, (Subscription("$share/group/t/#", 1),)))
    member.send(Disconnect())
    publish(bench, range(5 * LAP))
    bench = lives.restart()
    assert sorted(numbers(back(bench, "one"))) == list(range(5 * LAP))


def first_numbers(client: Wire) -> list[bytes]:
    """First digits of all that there is for it, not acknowledged."""
    return [bytes(it.payload[:1]) for it in client.received() if isinstance(it, Publish)]


@pytest.mark.parametrize("qos", [1, 2])  # after a restart the record is the group's, or the member's
def test_records_that_a_member_got_out_of_order_are_copied_in_the_next_life(qos: int, lives: Lives) -> None:
    bench = lives.start()
    leaves, stays = bench.client("leaves"), bench.client("stays", clean_start=False)
    for member in (leaves, stays):
        member.send(Subscribe(1, (Subscription("$share/group/t/#", qos),)))
        member.bytes_received()
    publish(bench, range(1), qos=qos)
    publish(bench, range(LAP // 2), "other")
    publish(bench, range(1, 2), qos=qos)
    assert first_numbers(stays) == [b"1"]
    leaves.drop()
    bench.settle()
    assert first_numbers(stays) == [b"0"]
    lives.stop()
    bench = lives.start()
    publish(bench, range(4 * LAP), "other")
    assert sorted(numbers(back(bench, "stays"))) == [0, 1]


def test_lives_that_spill_a_little_leave_no_half_empty_extents(lives: Lives) -> None:
    bench = lives.start()
    away(bench, "c")
    for life in range(12):
        publish(bench, range(life * LAP, (life + 1) * LAP))
        bench = lives.restart()
    live = now(bench, "spilled_bytes")
    assert now(bench, "spill_file_bytes") < live + (4 << 16)
    assert numbers(back(bench, "c")) == list(range(12 * LAP))


# ---- memory ----


def test_one_message_in_each_extent_does_not_pin_the_memory_of_all() -> None:
    with Lives(journal_bytes=1 << 22, capacity_bytes=RING_BYTES) as lives:
        bench = lives.start()
        away(bench, "all")
        away(bench, "few", "t/b")
        for first in range(0, 100 * LAP, 100):
            publish(bench, range(first, first + 1), "t/b")
            publish(bench, range(first + 1, first + 100))
        full = now(bench, "spill_file_bytes")
        assert full > 6 << 20
        numbers(back(bench, "all"))
        bench.settle(1_000)
        live = now(bench, "spilled_bytes")
        assert live < full / 20
        assert now(bench, "spill_file_bytes") < 3 * live + (3 << 20)
        bench = lives.restart()
        assert numbers(back(bench, "few")) == list(range(0, 100 * LAP, 100))
        bench.settle(1_000)
        assert now(bench, "spill_file_bytes") < 2 << 20


def test_a_limit_holds_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    limit_bytes = 50_000
    engine = EngineLimits(spill_max_bytes=limit_bytes)
    with Lives(journal_bytes=1 << 20, capacity_bytes=RING_BYTES, engine=engine) as lives:
        bench = lives.start()
        away(bench, "c")
        publish(bench, range(6 * LAP))
        assert 0 < now(bench, "spilled_bytes") <= limit_bytes
        SpillReport().log_changes(bench.stats.snapshot(), limit_bytes)
        assert f"spill_max_bytes={limit_bytes}" in caplog.text
        bench = lives.restart()
        got = numbers(back(bench, "c"))
        assert got == sorted(set(got))
        assert lives.restored is not None
        assert len(got) + lives.restored.lost == 6 * LAP


# ---- files that cannot be used ----


def test_a_file_of_another_broker_is_put_away_and_none_of_its_copies_is_served(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    bench = lives.start()
    away(bench, "c")
    publish(bench, range(4 * LAP))
    lives.kill()
    file = lives.directory / SPILL_NAME
    data = bytearray(file.read_bytes())
    for header in (0, COPY_AT):
        data[header + 16] ^= 1  # the epoch of its journal
    replace(file, data)
    bench = lives.start()
    assert "not usable" in caplog.text
    assert (lives.directory / f"{SPILL_NAME}.bad").exists()
    got = numbers(back(bench, "c"))
    assert got == list(range(4 * LAP - len(got), 4 * LAP))
    assert lives.restored is not None
    assert lives.restored.lost == 4 * LAP - len(got)


@pytest.mark.parametrize("damage", ["bit", "zeros", "noise"])
@pytest.mark.parametrize("header", [0, COPY_AT])
def test_one_damaged_header_costs_no_copy_and_is_repaired(header: int, damage: str, lives: Lives) -> None:
    bench = lives.start()
    away(bench, "c")
    publish(bench, range(4 * LAP))
    lives.kill()
    file = lives.directory / SPILL_NAME
    data = bytearray(file.read_bytes())
    random = Random(header)
    if damage == "bit":
        data[header + random.randrange(HEADER_BYTES)] ^= 1 << random.randrange(8)
    else:
        page = bytes(PAGE_BYTES) if damage == "zeros" else random.randbytes(PAGE_BYTES)
        data[header : header + PAGE_BYTES] = page
    replace(file, data)
    bench = lives.start()
    assert lives.restored is not None
    assert lives.restored.lost == 0
    lives.kill()
    data = bytearray(file.read_bytes())
    assert data[:HEADER_BYTES] == data[COPY_AT : COPY_AT + HEADER_BYTES]
    assert numbers(back(lives.start(), "c")) == list(range(4 * LAP))


def test_zeros_over_the_beginning_of_an_extent_cost_the_copies_that_they_hit(lives: Lives) -> None:
    bench = lives.start()
    away(bench, "c")
    publish(bench, range(4 * LAP))
    lives.kill()
    file = lives.directory / SPILL_NAME
    data = bytearray(file.read_bytes())
    places = {n: data.find(b"%d " % n + bytes(BODY)) for n in range(LAP)}
    at, hit = min((place % UNIT_BYTES, n) for n, place in places.items() if place >= 0)
    begin = places[hit] - at
    data[begin : begin + at + BODY] = bytes(at + BODY)  # the header, and most of the first copy
    replace(file, data)
    assert numbers(back(lives.start(), "c")) == [n for n in range(4 * LAP) if n != hit]
    assert lives.restored is not None
    assert lives.restored.lost == 1


@pytest.mark.parametrize("seed", range(8))
def test_damage_costs_what_it_has_hit_and_nothing_false_is_served(seed: int, lives: Lives) -> None:
    random = Random(seed)
    bench = lives.start()
    away(bench, "c")
    publish(bench, range(8 * LAP))
    lives.kill()
    file = lives.directory / SPILL_NAME
    whole = file.read_bytes()
    for _ in range(12):
        data = bytearray(whole)
        at = random.randrange(1 << 16, len(data))
        kind = random.choice(["bit", "zeros", "noise", "cut"])
        if kind == "bit":
            data[at] ^= 1 << random.randrange(8)
        elif kind == "cut":
            del data[at:]
        else:
            length = random.choice([4, 64, 512])
            data[at : at + length] = bytes(length) if kind == "zeros" else random.randbytes(length)
        hit = {"bit": 1, "cut": (len(whole) - at) // BODY + 2}.get(kind, 4)
        keep = lives.directory / "kept"
        shutil.copytree(lives.directory, keep, ignore=shutil.ignore_patterns("kept"))
        replace(file, data)
        bench = lives.start()
        got = numbers(back(bench, "c"))
        assert got == sorted(set(got))
        assert lives.restored is not None
        assert len(got) + lives.restored.lost == 8 * LAP
        assert lives.restored.lost <= hit, kind
        lives.kill()
        for it in keep.iterdir():
            it.replace(lives.directory / it.name)
        keep.rmdir()


def test_a_file_that_cannot_be_opened_is_reported_and_sessions_work_without(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    (lives.directory / SPILL_NAME).mkdir()
    bench = lives.start()
    assert "spill file not opened" in caplog.text
    away(bench, "c")
    publish(bench, range(4 * LAP))
    assert now(bench, "spill_file_bytes") == 0
    assert numbers(back(bench, "c")) == list(range(4 * LAP))


def test_full_and_not_full_any_more_are_reported_once_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock_s = 0.0
    report = SpillReport(lambda: clock_s)
    for error in (0, 28, 28, 0, 28, 0, 28, 28):
        clock_s += 1.0
        report.log_changes(
            {"spill_errno": error, "spill_file_bytes": 1, "spill_refused": 2, "spill_over": 0}, 3
        )
    assert caplog.text.count("cannot grow") == 1
    assert caplog.text.count("grows again") == 1
    clock_s += 10.0
    report.log_changes({"spill_errno": 28, "spill_file_bytes": 1, "spill_refused": 2, "spill_over": 0}, 3)
    assert caplog.text.count("cannot grow") == 2


# ---- bytes ----


UNIT_BYTES, HEAD_BYTES = 64 << 10, 64
ZEROS = bytes(COPY_AT - HEAD_BYTES)  # behind each header


def golden_life(lives: Lives) -> bytes:
    """The same bytes each time: what a short life leaves."""
    bench = lives.start()
    away(bench, "c")
    publisher = bench.client("p")
    for n in range(40):
        publisher.send(Publish("t/a", b"%d " % n + bytes([n]) * 2_000, 1, packet_id=1))
    lives.kill()
    return (lives.directory / SPILL_NAME).read_bytes().rstrip(b"\0")


def short(file: bytes) -> bytes:
    """The golden bytes: both headers, and the one unit that is used; the first is spare."""
    headers = file[:HEAD_BYTES], file[COPY_AT : COPY_AT + HEAD_BYTES]
    assert file[: 2 * UNIT_BYTES] == ZEROS.join(headers) + ZEROS + bytes(UNIT_BYTES)
    return b"".join(headers) + file[2 * UNIT_BYTES :]


def long(golden: bytes) -> bytes:
    """The file that has these golden bytes."""
    headers = golden[:HEAD_BYTES], golden[HEAD_BYTES : 2 * HEAD_BYTES]
    return ZEROS.join(headers) + ZEROS + bytes(UNIT_BYTES) + golden[2 * HEAD_BYTES :]


@pytest.fixture
def known_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed of an engine is in the file."""
    fixed = SimpleNamespace(urandom=lambda count: bytes(range(count)))
    monkeypatch.setattr("edge.engine.engine.os", fixed)


@pytest.mark.usefixtures("known_seed")
def test_what_is_written_are_the_golden_bytes(lives: Lives) -> None:
    assert short(golden_life(lives)) == GOLDEN.read_bytes()
    assert (lives.directory / SPILL_NAME).stat().st_mode & 0o777 == 0o600


def test_the_golden_bytes_are_read(lives: Lives) -> None:
    golden_life(lives)
    replace(lives.directory / SPILL_NAME, long(GOLDEN.read_bytes()))
    bench = lives.start()
    assert lives.restored is not None
    assert lives.restored.lost == 0
    assert now(bench, "spilled_records") > 5
    assert numbers(back(bench, "c")) == list(range(40))
