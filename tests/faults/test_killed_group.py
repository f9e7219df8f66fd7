"""A group of four processes, killed at random, and their broker with them: nothing is lost, what was
acknowledged never comes again, and order holds where it is promised.

`./dev test -m campaign` publishes a million messages.
"""

import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from brim import Letter, publish
from edge.errors import BrokerUnreachable
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild

PARTITIONS = 8
MEMBERS = 4
TOPICS = 64
LETTERS = 1_000  # in one request
PATIENCE_S = 240.0  # without progress


def broker_of(runtime_dir: Path, directory: Path, ring_bytes: int) -> BrimProcess:
    """Not started."""
    stream = {"name": "some", "topics": ["a/#"], "partitions": PARTITIONS, "ring_bytes": ring_bytes}
    lines = ["[limits]", "packet_max_bytes = 4096", "topic_max_bytes = 256", "[[stream]]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in stream.items()]
    return BrimProcess(runtime_dir, directory, "\n".join(lines), bridge=False)


class Campaign:
    """Publishes `count` numbers and lets a group have them, with deaths on the way."""

    def __init__(self, runtime_dir: Path, directory: Path, mode: str, count: int, seed: int) -> None:
        self.runtime_dir, self.directory, self.mode, self.count = runtime_dir, directory, mode, count
        self.random = random.Random(seed)
        self.members: list[ModuleChild] = []
        self.seen = bytearray(count)
        self._ledgers: dict[Path, int] = {}  # and how far it has been read
        self._published = 0
        self._stopping = threading.Event()

    def run(self, broker: BrimProcess, member_deaths: int, broker_deaths: int) -> None:
        deaths = ["member"] * member_deaths + ["broker"] * broker_deaths
        self.random.shuffle(deaths)
        points = sorted(self.random.uniform(0.02, 0.95) * self.count for _ in deaths)
        publisher = threading.Thread(target=self._publish)
        publisher.start()
        try:
            for _ in range(MEMBERS):
                self._join()
            for point, who in zip(points, deaths, strict=True):
                self._until(point)
                if who == "broker":
                    broker.kill()
                    broker.start()
                else:
                    self.members.pop(self.random.randrange(MEMBERS)).kill()
                    self._join()
            self._until(self.count)
        finally:
            self._stopping.set()
            for member in self.members:
                member.kill()
            publisher.join()

    def events(self) -> list[tuple[int, str, str, int, int]]:
        """(time, P or A, ring, first offset, count), in order."""
        found = []
        for ledger in self._ledgers:
            for line in ledger.read_text().splitlines():
                what, at, *rest = line.split(" ")
                if what != "N":
                    found.append((int(at), what, rest[0], int(rest[1]), int(rest[2])))
        return sorted(found)

    def _publish(self) -> None:
        """All numbers; what was not answered is published again."""
        while self._published < self.count and not self._stopping.is_set():
            numbers = range(self._published, min(self._published + LETTERS, self.count))
            letters = [(Letter(f"a/{number % TOPICS}"), str(number).encode()) for number in numbers]
            try:
                if publish(letters, runtime_dir=self.runtime_dir) == len(letters):
                    self._published += len(letters)
            except BrokerUnreachable:
                continue

    def _join(self) -> None:
        ledger = self.directory / f"ledger-{len(self._ledgers)}"
        ledger.touch()
        self._ledgers[ledger] = 0
        self.members.append(ModuleChild("tests.support.group_member", self.runtime_dir, ledger, self.mode))

    def _until(self, count: float) -> None:
        """So many different numbers have been seen."""
        before, since = -1, time.monotonic()
        while (now := self._count()) < count:
            if now != before:
                before, since = now, time.monotonic()
            assert time.monotonic() < since + PATIENCE_S, f"{now} of {count}, {self._published} published"
            time.sleep(0.02)

    def _count(self) -> int:
        for ledger, at in self._ledgers.items():
            with ledger.open("rb") as file:
                file.seek(at)
                whole = file.read().rpartition(b"\n")[0]
            self._ledgers[ledger] += len(whole) + 1 if whole else 0
            for line in whole.split(b"\n"):
                if line.startswith(b"N"):
                    for number in line.split(b" ")[2].split(b","):
                        self.seen[int(number)] = 1
        return sum(self.seen)


def violations(events: list[tuple[int, str, str, int, int]], *, ordered: bool) -> Iterator[str]:
    """Violations of the promises to a group."""
    done: dict[str, set[int]] = {}
    last_end: dict[str, int] = {}
    for at, what, ring, first, count in events:
        acked = done.setdefault(ring, set())
        offsets = range(first, first + count)
        if what == "A":
            acked.update(offsets)
            continue
        again = acked.intersection(offsets)
        if again:
            yield f"{ring}: {len(again)} records from {min(again)} on came again at {at}, acknowledged before"
        if ordered:
            skipped = [it for it in range(last_end.get(ring, 0), first) if it not in acked]
            if skipped:
                yield f"{ring}: {first} came at {at} before {skipped[0]} and {len(skipped) - 1} others"
            last_end[ring] = first + count


def check(
    runtime_dir: Path, directory: Path, mode: str, count: int, seed: int, deaths: tuple[int, int]
) -> str:
    ring_bytes = 1 << max(20, (count * 96 // PARTITIONS * 2).bit_length())
    with broker_of(runtime_dir, directory, ring_bytes) as broker:
        campaign = Campaign(runtime_dir, directory, mode, count, seed)
        began = time.monotonic()
        campaign.run(broker, *deaths)
        took_s = time.monotonic() - began
    assert sum(campaign.seen) == count
    events = campaign.events()
    assert list(violations(events, ordered=mode == "ordered"))[:5] == []
    handed = sum(event[4] for event in events if event[1] == "P")
    return f"{mode}: {count} in {took_s:.1f} s, {handed} handed out, deaths {deaths}"


def test_the_ledgers_judge_sees_what_must_not_be() -> None:
    fine = [(1, "P", "r", 0, 5), (2, "A", "r", 0, 5), (3, "P", "r", 5, 2), (4, "P", "r", 5, 2)]
    assert list(violations(fine, ordered=True)) == []
    assert len(list(violations([*fine, (5, "P", "r", 4, 1)], ordered=False))) == 1
    assert len(list(violations([*fine, (5, "P", "r", 8, 1)], ordered=True))) == 1
    assert list(violations([*fine, (5, "P", "r", 8, 1)], ordered=False)) == []


@pytest.mark.parametrize(("mode", "deaths"), [("ordered", (2, 1)), ("queue", (1, 0))])
def test_a_group_whose_members_and_broker_die_loses_nothing(mode, deaths, runtime_directory, tmp_path):
    print(check(runtime_directory, tmp_path, mode, 10_000, seed=1, deaths=deaths))


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["ordered", "queue"])
def test_a_million_messages(mode, runtime_directory, tmp_path):
    print(check(runtime_directory, tmp_path, mode, 1_000_000, seed=2, deaths=(20, 5)))
