"""Random histories of MQTT clients, each seen twice: by clients whose connections end, and next to kills.

The clients of a history act one after the other, and wait until the broker is at rest. In the first life
`CutAll` closes all connections. In the second life the broker is killed with -9 there, and started again.
All clients must see the same packets in the same steps: sessions, messages in flight, wills, retained
messages and subscriptions survive a kill as they survive the end of a connection.

The order of messages of one topic counts; that of different topics, and of other packets, does not.
Exceptions:

- A will at the end of all connections may be sent to a client that is gone: its DUP is not compared.
- Messages of QoS 0 that wait in a queue may be lost: they are not compared.
- Any member of a shared subscription may get a message: here a missing one counts, and at QoS 2 a second
  delivery.
- A client that has not acknowledged all retained messages of a subscription gets all of them again after a
  kill: here only a missing one counts.
"""

import time
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from edge.mqtt import Version
from tests.campaigns.running import Campaign, Outcome, broken_by
from tests.support.brim_process import BrimProcess
from tests.support.directories import memory_directory
from tests.support.histories import MEMBERS, SHARED_TOPICS, WILL, CutAll, Step, history
from tests.support.history_client import Arrival, Event, HistoryClient, Wrong

STREAM = '[[stream]]\nname = "all"\ntopics = ["#"]\npartitions = {}\ndurability = "{}"\n'
SETTINGS = (
    "",
    STREAM.format(7, "process"),
    STREAM.format(2, "interval") + '[sessions]\ndurability = "interval"\n',
    STREAM.format(3, "disk") + '[sessions]\ndurability = "disk"\n',
)
REST_S = 0.02  # between two rounds of PINGREQ
ROUNDS_MAX = 20  # of them, until the broker is at rest

Seen = list[dict[str, list[Event]]]  # events of each client, by step


class _Life:
    """All clients of a history, and their broker."""

    def __init__(self, versions: Mapping[str, Version], broker: BrimProcess, *, kills: bool) -> None:
        self._broker, self._kills = broker, kills
        self._clients = {
            name: HistoryClient(broker.port, name, version) for name, version in versions.items()
        }

    def run(self, steps: Iterable[Step]) -> Seen:
        """The events of each step."""
        seen: Seen = []
        try:
            for step in steps:
                self._do(step)
                self._rest()
                seen.append({name: client.take() for name, client in self._clients.items()})
        finally:
            self._cut_all()
        return seen

    def _do(self, step: Step) -> None:
        if not isinstance(step, CutAll):
            self._clients[step.client].do(step)
            return
        if self._kills:
            self._broker.kill()
        self._cut_all()
        if self._kills:
            self._broker.start()

    def _cut_all(self) -> None:
        for client in self._clients.values():
            client.cut()

    def _rest(self) -> None:
        """Wait until no client gets anything more: two rounds of PINGREQ bring no event."""
        quiet = 0
        for _ in range(ROUNDS_MAX):
            before = self._count()
            for client in self._clients.values():
                client.ping()
            quiet = quiet + 1 if self._count() == before else 0
            if quiet > 1:
                return
            time.sleep(REST_S)
        raise AssertionError(f"clients still get packets after {ROUNDS_MAX} rounds of PINGREQ")

    def _count(self) -> int:
        return sum(len(client.events) for client in self._clients.values())


def differences(steps: Sequence[Step], cut: Seen, killed: Seen) -> Iterator[str]:
    """Differences of two lives, and each mistake of a broker in one of them."""
    for number, (step, one, two) in enumerate(zip(steps, cut, killed, strict=True)):
        for name in one:
            for text in _differences_of(one[name], two[name]):
                yield f"step {number} {step}: {name}: {text}"
    for name in cut[0]:
        if missing := _retained(cut, name) - _retained(killed, name):
            yield f"{name}: next to kills these retained messages are missing: {missing}"
    yield from _shared_differences(_shared(cut), _shared(killed))


def _differences_of(one: list[Event], two: list[Event]) -> Iterator[str]:
    first, second = _by_topic(one), _by_topic(two)
    for topic in {**first, **second}:
        if first[topic] != second[topic]:
            yield f"{topic}: {first[topic]}, next to kills {second[topic]}"
    yield from (event.text for event in (*one, *two) if isinstance(event, Wrong))


def _by_topic(events: list[Event]) -> dict[str, list[Event]]:
    """Messages that are compared, by topic, and at "" the other packets."""
    parts: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if not isinstance(event, Arrival):
            insort(parts[""], event, key=repr)
        elif event.qos and not event.retain and event.topic not in SHARED_TOPICS:
            is_will = event.payload.startswith(WILL)
            parts[event.topic].append(event._replace(dup=False) if is_will else event)
    return parts


def _retained(seen: Seen, name: str) -> set[tuple[str, bytes, int]]:
    arrivals = (event for step in seen for event in step[name] if isinstance(event, Arrival))
    return {(it.topic, it.payload, it.qos) for it in arrivals if it.qos and it.retain}


def _shared(seen: Seen) -> Counter[tuple[str, bytes, int]]:
    """Number of deliveries of each shared message."""
    events = (event for step in seen for name in MEMBERS for event in step.get(name, ()))
    arrivals = (event for event in events if isinstance(event, Arrival) and not event.is_repeated)
    return Counter((it.topic, it.payload, it.qos) for it in arrivals if it.qos and it.topic in SHARED_TOPICS)


def _shared_differences(
    cut: Counter[tuple[str, bytes, int]], killed: Counter[tuple[str, bytes, int]]
) -> Iterator[str]:
    if cut.keys() != killed.keys():
        yield f"shared messages {cut - killed}, next to kills {killed - cut}"
    for message, count in (*cut.items(), *killed.items()):
        if message[2] == 2 and count > 1:
            yield f"shared message of QoS 2 delivered {count} times: {message}"


def run_seed(seed: int, module: str = "edge") -> Outcome:
    """One history. `module`: the broker that is killed; another one may have a planted mistake."""
    versions, steps = history(seed)
    settings = SETTINGS[seed % len(SETTINGS)]
    lives: list[Seen] = []
    wrong: list[str] = []

    def run() -> None:
        for kills, program in ((False, "edge"), (True, module)):
            with (
                memory_directory() as memory,
                TemporaryDirectory() as disk,
                BrimProcess(memory / "run", Path(disk), settings, bridge=False, module=program) as broker,
            ):
                lives.append(_Life(versions, broker, kills=kills).run(steps))
        wrong.extend(differences(steps, *lives))

    wrong = broken_by(run, seed, wrong)
    packets = sum(len(events) for seen in lives for step in seen for events in step.values())
    kills_done = sum(isinstance(step, CutAll) for step in steps)
    return Counter({"histories": 1, "kills": kills_done, "packets": packets}), wrong


HISTORIES = Campaign(
    name="histories",
    what="random histories of clients, which must see the same packets next to kills -9",
    unit="histories",
    wanted=100,
    run_seed=run_seed,
)
