"""The broker killed with -9 while absent sessions wait for ten times what a ring holds.

Two streams of level "process" with the smallest ring there is: a publisher of QoS 1, and one of QoS 2 whose
session is kept.  Four subscribers with sessions that are kept: two are away all the time, one takes a part
of what waits for it and breaks off, one is connected and reads nothing.  They are processes of their own for
the broker: their ledgers survive it.

In a round the backlog grows to ten times each ring; then the broker is killed several times: under load,
while a subscriber takes a part, and in its start.  Sometimes it is stopped as an operator would stop it.  At
the end of a round all subscribers take everything, in order: each number that was acknowledged, and each of
QoS 2 once.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Self

from tests.campaigns.running import Campaign, Outcome
from tests.support.directories import memory_directory
from tests.support.logged_broker import LoggedBroker
from tests.support.outside_client import Lost, OutsideClient, drain, pump
from tests.support.outside_publisher import OutsidePublisher
from tests.support.outside_subscriber import OutsideSubscriber
from tests.support.waiting import PATIENCE_S

STREAMS = {"once": 2, "often": 1}  # QoS by stream
RING_BYTES = 64 << 10
RECORD_BYTES = 190  # of one message, about: outside_client.payload_of()
TIMES = 10  # what waits, in rings
SETTINGS = """
[limits]
packet_max_bytes = "4 KiB"
queued_records_max = 1000000
in_flight_max = {in_flight}
"""
ROUNDS = 2  # of one seed
KILLS_OF_A_ROUND = 5
LOAD_S = (0.001, 0.05)
START_S = 0.6  # a start that is killed lives at most so long


class SpillRounds:
    """A broker, and what it owes to whom.  A context manager: the broker is gone at the end."""

    def __init__(
        self, runtime_dir: Path, state_dir: Path, seed: int, *, times: int = TIMES, in_flight: int = 0
    ) -> None:
        """`in_flight`: messages to a subscriber without an acknowledgement, at most; 0: by chance."""
        self.random = Random(seed)
        self.counts: Counter[str] = Counter()
        self.broker = LoggedBroker(
            runtime_dir,
            state_dir,
            dict.fromkeys(STREAMS, "process"),
            settings=SETTINGS.format(in_flight=in_flight or self.random.choice([3, 20, 300])),
            ring_bytes=RING_BYTES,
        )
        self.publishers = [OutsidePublisher(f"{name}/t", qos=qos) for name, qos in STREAMS.items()]
        topics = [it.topic for it in self.publishers]
        names = ("away", "long away", "partly", "slow")
        self.subscribers = [OutsideSubscriber(name, topics) for name in names]
        self._partly, self._slow = self.subscribers[2:]
        self._everybody: list[OutsideClient] = [*self.publishers, *self.subscribers]
        self._backlog = times * RING_BYTES // RECORD_BYTES
        self._acked: dict[str, set[int]] = {topic: set() for topic in topics}  # of this round
        self._sent = dict.fromkeys(topics, 0)  # when it began

    def __enter__(self) -> Self:
        with ExitStack() as on_failure:
            on_failure.push(self)
            self.broker.start()
            for it in self.subscribers:
                it.connect(self.broker.port)
            self._pump(self.subscribers, lambda: all(it.subscribed for it in self.subscribers), "no SUBACK")
            for it in self.subscribers:
                it.close()
            on_failure.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for it in self._everybody:
            it.close()
        self.broker.close()

    def round(self, kills: int = KILLS_OF_A_ROUND) -> None:
        """A backlog, kills, and what is left.  Raises Lost."""
        self._load()
        for _ in range(kills):
            self._kill()
        if self.random.random() < 0.3:
            self.broker.stop()
            self.counts["stops"] += 1
            self.broker.start()
        self._look()

    # ---- parts of a round ----

    def _load(self) -> None:
        """Publishes until what is acknowledged is the backlog."""
        wanted = {it.topic: it.sent + self._backlog for it in self.publishers}
        for it in self.publishers:
            it.connect(self.broker.port)
        self._pump(
            self.publishers,
            lambda: all(it.waiting_since >= wanted[it.topic] for it in self.publishers),
            "a publisher is not acknowledged",
        )

    def _kill(self) -> None:
        """Under more load, while a subscriber takes a part of what waits for it."""
        for it in self.publishers:
            if not it.connected:
                it.connect(self.broker.port)
        talking: list[OutsideClient] = [*self.publishers]
        if self.random.random() < 0.7:
            self._partly.connect(self.broker.port)
            talking.append(self._partly)
        end = time.monotonic() + self.random.uniform(*LOAD_S)
        pump(talking, lambda: time.monotonic() > end)
        if self.random.random() < 0.5:  # with messages that it has not acknowledged, nor read
            self._slow.connect(self.broker.port)
            pump([*self.publishers], lambda: time.monotonic() > end + 0.01)
        self.broker.kill()
        self.counts["kills with a backlog"] += 1
        self._slow.close()
        drain(talking)
        self._take_ledger()
        while self.random.random() < 0.15:
            self.broker.spawn()
            time.sleep(self.random.uniform(0, START_S))
            self.broker.kill()
            self.counts["kills in a start"] += 1
        self.broker.start()

    def _take_ledger(self) -> None:
        for it in self.publishers:
            self._acked[it.topic] |= it.acked
            self.counts[f"acknowledged at QoS {it.qos}"] += len(it.acked)
            it.acked.clear()

    def _look(self) -> None:
        """Publishers come to their end; then everybody takes everything."""
        for it in self.publishers:
            if not it.connected:
                it.connect(self.broker.port)
            it.is_paused = True
        self._pump(self.publishers, lambda: not any(it.waiting for it in self.publishers), "no PUBACK")
        self._take_ledger()
        for it in self.publishers:
            it.is_paused = False
        for subscriber in self.random.sample(self.subscribers, len(self.subscribers)):
            self._take_all(subscriber)
        for publisher in self.publishers:
            self._acked[publisher.topic].clear()

    def _take_all(self, subscriber: OutsideSubscriber) -> None:
        subscriber.connect(self.broker.port)
        otherwise = f"acknowledged and not there: {subscriber.client_id}"
        self._pump([subscriber], lambda: self._has_all(subscriber), otherwise)
        subscriber.close()
        for topic, numbers in subscriber.arrived.items():
            self.counts[f"delivered to {subscriber.client_id}"] += len(numbers)
            subscriber.forget(topic)

    def _has_all(self, subscriber: OutsideSubscriber) -> bool:
        """True if nothing is missing.  Compares numbers only once their count suffices: called per packet."""
        counts = ((len(subscriber.arrived[topic]), len(its)) for topic, its in self._acked.items())
        return all(arrived >= acked for arrived, acked in counts) and not self._missing(subscriber)

    def _missing(self, subscriber: OutsideSubscriber) -> int:
        return sum(len(numbers - subscriber.arrived[topic]) for topic, numbers in self._acked.items())

    def _pump(self, clients: Sequence[OutsideClient], until: Callable[[], bool], otherwise: str) -> None:
        """Raises Lost: the condition does not come true."""
        deadline = time.monotonic() + 3 * PATIENCE_S
        pump(clients, lambda: until() or time.monotonic() > deadline)
        if not until():
            raise Lost(f"{otherwise}; missing: {[self._missing(it) for it in self.subscribers]}")


def run_seed(seed: int) -> Outcome:
    """One broker."""
    wrong = []
    with (
        memory_directory() as memory,
        TemporaryDirectory() as disk,
        SpillRounds(memory / "run", Path(disk), seed) as rounds,
    ):
        try:
            for _ in range(ROUNDS):
                rounds.round()
        except Lost as error:
            wrong.append(f"seed {seed}: {error}")
        counts = rounds.counts
    return counts, wrong


SPILL = Campaign(
    name="spill",
    what="the broker killed with -9 while absent sessions wait for ten rings",
    unit="kills with a backlog",
    wanted=100,
    run_seed=run_seed,
)
