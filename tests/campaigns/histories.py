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
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.campaigns.running import Campaign, Outcome
from tests.support.brim_process import BrimProcess
from tests.support.directories import memory_directory
from tests.support.histories import (
    MEMBERS,
    SHARED_TOPICS,
    WILL,
    Acknowledges,
    Connects,
    CutAll,
    Leaves,
    Publishes,
    Step,
    Subscribes,
    Unsubscribes,
    history,
)
from tests.support.history_client import AGAIN, MESSAGE, Event, HistoryClient

STREAM = '[[stream]]\nname = "all"\ntopics = ["#"]\npartitions = {}\ndurability = "{}"\n'
SETTINGS = (
    "",
    STREAM.format(7, "process"),
    STREAM.format(2, "interval") + '[sessions]\ndurability = "interval"\n',
    STREAM.format(3, "disk") + '[sessions]\ndurability = "disk"\n',
)
REST_S = 0.02  # between two rounds of PINGREQ
ROUNDS_MAX = 20  # of them, until the broker is at rest

TOPIC, PAYLOAD, QOS, RETAIN, DUP = 1, 2, 3, 4, 5  # in the event of a message

Seen = list[dict[str, list[Event]]]  # events of each client, by step


class _Life:
    """All clients of a history, and their broker."""

    def __init__(self, seed: int, broker: BrimProcess, *, kills: bool) -> None:
        self._versions, self._steps = history(seed)
        self._broker, self._kills = broker, kills
        self._clients = {
            name: HistoryClient(broker.port, name, version) for name, version in self._versions.items()
        }

    def run(self) -> tuple[list[Step], Seen]:
        """The steps, and the events of each of them."""
        seen: Seen = []
        try:
            for step in self._steps:
                self._do(step)
                self._rest()
                seen.append({name: client.take() for name, client in self._clients.items()})
        finally:
            for client in self._clients.values():
                client.cut()
        return self._steps, seen

    def _do(self, step: Step) -> None:
        match step:
            case CutAll():
                self._cut()
            case Connects():
                self._clients[step.client].connects(step)
            case Subscribes():
                self._clients[step.client].subscribes(step)
            case Unsubscribes():
                self._clients[step.client].unsubscribes(step)
            case Publishes():
                self._clients[step.client].publishes(step)
            case Acknowledges():
                self._clients[step.client].acknowledges(step)
            case Leaves():
                self._clients[step.client].leaves(step)

    def _cut(self) -> None:
        if self._kills:
            self._broker.kill()
        for client in self._clients.values():
            client.cut()
        if self._kills:
            self._broker.start()

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

    def _count(self) -> int:
        return sum(len(client.events) for client in self._clients.values())


def differences(steps: Sequence[Step], cut: Seen, killed: Seen) -> Iterator[str]:
    """Differences of two lives, and each mistake of a broker in one of them."""
    for number, (step, one, two) in enumerate(zip(steps, cut, killed, strict=True)):
        for name in one:
            for kind, first, second in _pairs(one[name], two[name]):
                if first != second:
                    yield f"step {number} {step}: {name}: {kind}: {first}, next to kills {second}"
            for event in (*one[name], *two[name]):
                if str(event[0]).startswith("WRONG"):
                    yield f"step {number} {step}: {name}: {event}"
    for name in cut[0]:
        if missing := _retained(cut, name) - _retained(killed, name):
            yield f"{name}: next to kills these retained messages are missing: {missing}"
    shared = [_shared(seen) for seen in (cut, killed)]
    if shared[0].keys() != shared[1].keys():
        yield f"shared messages {shared[0] - shared[1]}, next to kills {shared[1] - shared[0]}"
    for message in (message for seen in shared for message, count in seen.items() if count > 1):
        if message[-1] == 2:
            yield f"shared message of QoS 2 more than once: {message}"


def _shared(seen: Seen) -> Counter[tuple[object, ...]]:
    """Number of deliveries of each shared message: topic, payload, QoS."""
    events = (event for step in seen for name in MEMBERS for event in step.get(name, ()))
    return Counter(
        event[TOPIC : QOS + 1] for event in events if event[0] == MESSAGE and _is_shared(event) and event[QOS]
    )


def _is_shared(event: Event) -> bool:
    return event[TOPIC] in SHARED_TOPICS


def _pairs(one: list[Event], two: list[Event]) -> Iterator[tuple[object, list[Event], list[Event]]]:
    """Topic, or None for other packets, and the events of each life."""
    parts = _by_topic(one), _by_topic(two)
    for topic in {**parts[0], **parts[1]}:
        yield topic, parts[0][topic], parts[1][topic]


def _by_topic(events: list[Event]) -> dict[object, list[Event]]:
    parts: dict[object, list[Event]] = defaultdict(list)
    for event in events:
        if not _is_message(event):
            insort(parts[None], event, key=repr)
        elif event[QOS] and not event[RETAIN] and not _is_shared(event):
            is_will = str(event[PAYLOAD]).startswith(str(WILL)[:-1])
            parts[event[TOPIC]].append((*event[:DUP], *event[DUP + 1 :]) if is_will else event)
    return parts


def _is_message(event: Event) -> bool:
    return event[0] in (MESSAGE, AGAIN)


def _retained(seen: Seen, name: str) -> set[tuple[object, ...]]:
    events = (event for step in seen for event in step[name] if _is_message(event))
    return {event[TOPIC:RETAIN] for event in events if event[QOS] and event[RETAIN]}


def run_seed(seed: int, module: str = "edge") -> Outcome:
    """One history. `module`: the broker that is killed; another one may have a planted mistake."""
    lives = []
    for kills in (False, True):
        with memory_directory() as memory, TemporaryDirectory() as disk:
            settings = SETTINGS[seed % len(SETTINGS)]
            broker = BrimProcess(
                memory / "run", Path(disk), settings, bridge=False, module=module if kills else "edge"
            )
            with broker:
                steps, seen = _Life(seed, broker, kills=kills).run()
                lives.append(seen)
    wrong = [f"seed {seed}: {it}" for it in differences(steps, *lives)]
    events = sum(len(events) for seen in lives for step in seen for events in step.values())
    kills_done = sum(isinstance(step, CutAll) for step in steps)
    return Counter({"histories": 1, "kills": kills_done, "packets": events}), wrong


HISTORIES = Campaign(
    name="histories",
    what="random histories of clients, which must see the same packets next to kills -9",
    unit="histories",
    wanted=100,
    run_seed=run_seed,
)
