"""Vectors of tests/golden/mqtt/vectors: bytes that clients send, and bytes that they must receive.

Each test runs one file of them, or all, and reports every vector that does not hold.
"""

import pytest

from edge.engine.engine import counters_of
from edge.mqtt import PingReq, PingResp, Publish
from tests.support.mqtt_bench import Bench
from tests.support.mqtt_transports import KINDS, TLS_KINDS, transports
from tests.support.vector_files import VECTORS, scenarios
from tests.support.vector_lines import ENGINE, bench_lines, stream_dial
from tests.support.vector_run import Line, run

FILES = sorted(path.name for path in VECTORS.glob("*.txt"))
PARTS = [
    *(pytest.param(kind, slice(None), id=kind) for kind in KINDS if kind not in TLS_KINDS),
    # Each handshake takes long: these kinds run every vector together, not each of them.
    *(pytest.param(kind, slice(part, None, len(TLS_KINDS)), id=kind) for part, kind in enumerate(TLS_KINDS)),
    *(pytest.param(kind, slice(None), id=f"{kind}-all", marks=pytest.mark.campaign) for kind in TLS_KINDS),
]


def impatient(seconds):
    raise AssertionError(f"a test slept {seconds} s; it must not wait")


def works(bench: Bench) -> None:
    client = bench.client("fresh")
    client.subscribe("fresh/#")
    client.send(Publish("fresh/a", b"x"))
    assert client.publishes() == [("fresh/a", b"x", 0)]
    client.drop()


@pytest.mark.parametrize("file", FILES)
def test_vectors_hold(file):
    with bench_lines() as (bench, dial, later):
        failed = [
            f"{scenario}\n    {verdict}"
            for number, scenario in enumerate(scenarios(file))
            if (verdict := run(scenario, f"{number:04x}", dial, later))
        ]
        assert not failed, "\n".join(failed)
        works(bench)


def test_vectors_leave_nothing_behind():
    """Run twice, the second run takes no more sessions, connections or routes than the first left."""
    with bench_lines() as (bench, dial, later):
        held = []
        for _ in range(2):
            for number, scenario in enumerate(scenarios()):
                run(scenario, f"{number:04x}", dial, later)
            bench.settle()
            counters = counters_of(bench.engine)
            held.append((counters.connections, counters.retained, len(bench.broker.sessions)))
        assert held[0] == held[1]
        works(bench)


@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_vectors_hold_over(kind, part):
    """But those that wait: there a clock of the bench's own passes faster."""
    with transports(kind, engine=ENGINE) as there:
        dial = stream_dial(there, kind)
        failed = [
            f"{scenario}\n    {verdict}"
            for number, scenario in enumerate(scenarios()[part])
            if not scenario.needs_time and (verdict := run(scenario, f"{number:04x}", dial, impatient))
        ]
        assert not failed, "\n".join(failed)
        with there.client(kind, "fresh") as client:
            client.send(PingReq())
            assert client.packet() == PingResp()


class Deaf:
    """A line on which nothing comes."""

    def send(self, data: bytes) -> None:
        pass

    def receive(self) -> bytes:
        return b""

    def drop(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_broker_that_closes_at_once_fails_every_vector_that_wants_an_answer():
    def dial() -> Line:
        return Deaf()

    passed = [
        str(scenario) for scenario in scenarios() if not run(scenario, "0000", dial, lambda seconds: None)
    ]
    wanting = [s for s in scenarios() if any(step.verb not in (">", "closed", "later") for step in s.steps)]
    assert not {str(scenario) for scenario in wanting} & set(passed)


def test_there_are_two_thousand_vectors():
    assert len(scenarios()) >= 2000
