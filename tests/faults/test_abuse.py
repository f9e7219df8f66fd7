"""Hostile clients together with honest ones: all honest messages arrive, memory is bounded.

Sizes are small here; benchmarks/abuse.py has those of a real attack, and says what honest clients felt.
"""

import json
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.support.abuse import ABUSES, UNDO
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild

MIB = 1 << 20
LIMITS = """
[limits]
connections_max = 400
connect_timeout_s = 1
packet_max_bytes = "256 KiB"
subscriptions_max = 100
topics_max = 20000
queued_records_max = 5000
retained_max = 2000
retained_max_bytes = "1 MiB"
receive_max = 200
sessions_max = 300
[[stream]]
name = "small"
topics = ["#"]
ring_bytes = "4 MiB"
"""

# abuse, size, MiB that the broker may grow by while it lasts, what must have been seen
CASES = [
    ("silent_connections", 200, 4, lambda it: it["closed"] == it["opened"]),
    ("trickled_connect", 50, 4, lambda it: it["closed"] == it["opened"]),
    ("huge_claims", 20, 4, lambda it: it["closed"] == it["opened"]),
    ("garbage", 100, 4, lambda it: it["closed"] == it["opened"]),
    ("huge_publish", 20, 4, lambda it: it["closed"] and it["taken_kib"] < 16_000),
    ("many_subscriptions", 1_000, 8, lambda it: it["granted"] == 100 and it["alive"]),
    ("deep_topic", 60_000, 4, lambda it: it["refused"] == 2),
    ("many_topics", 60_000, 32, lambda it: it["alive"]),
    ("many_retained", 5_000, 12, lambda it: it["alive"]),
    ("retained_topics", 8_000, 12, lambda it: it["alive"]),
    ("many_sessions", 500, 8, lambda it: it["accepted"] == 225),
    ("never_reads", 20, 8, lambda it: it["alive"]),
    ("never_acknowledges", 30, 8, lambda it: it["alive"]),
    ("never_releases", 3_000, 8, lambda it: it["closed"] == 1),
    ("take_overs", 100, 4, lambda it: it["closed"] == it["opened"] - 1 and it["alive"]),
    ("connect_storm", 500, 4, lambda it: True),
    ("subscription_churn", 300, 8, lambda it: it["alive"]),
    ("heavy_properties", 300, 8, lambda it: it["alive"]),
    ("connection_crowd", 350, 8, lambda it: 250 < it["let_in"] < it["opened"]),
    ("half_packets", 100, 48, lambda it: it["let_in"] == it["opened"]),
    ("large_wills", 300, 48, lambda it: 0 < it["let_in"] < it["opened"]),
    ("deaf_crowd", 5, 48, lambda it: it["alive"]),
    ("mute_crowd", 5, 24, lambda it: it["alive"]),
    ("connect_properties", 5, 8, lambda it: it["closed"] == it["sent"]),
    ("subscribe_properties", 2, 12, lambda it: it["closed"] == it["sent"]),
    ("four_mb_of_filters", 2, 12, lambda it: it["closed"] == it["sent"] and it["alive"]),
    ("filter_bomb", 20, 24, lambda it: it["alive"]),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrimProcess]:
    """One for all of them: what one leaves behind is there for the next."""
    directory = tmp_path_factory.mktemp("abuse")
    with BrimProcess(directory / "run", directory, LIMITS) as process:
        yield process


@pytest.fixture(scope="module")
def honest(broker: BrimProcess) -> Iterator[ModuleChild]:
    """Honest clients that publish and subscribe through all abuses."""
    with ModuleChild("tests.support.honest_clients", broker.port, 10, 200) as process:
        process.lines_until("ready")
        yield process


def private_bytes(broker: psutil.Process) -> int:
    """Resident memory without rings: a broker populates these during its first seconds."""
    memory = broker.memory_info()
    return int(memory.rss - memory.shared)


def report(honest: ModuleChild) -> dict[str, float]:
    """Latencies of honest clients, of at least fifty messages."""
    total: dict[str, float] = {"sent": 0, "lost": 0, "max_ms": 0}
    while total["sent"] < 50:
        honest.say("report")
        row = json.loads(honest.line())
        total = {
            "sent": total["sent"] + row["sent"],
            "lost": total["lost"] + row["lost"],
            "max_ms": max(total["max_ms"], row["max_ms"]),
        }
    return total


@pytest.mark.parametrize(("name", "size", "growth_mib", "is_right"), CASES, ids=[it[0] for it in CASES])
def test_honest_clients_go_on_while_one_does(
    broker: BrimProcess,
    honest: ModuleChild,
    name: str,
    size: int,
    growth_mib: int,
    is_right: Callable[[dict[str, int]], bool],
) -> None:
    process = psutil.Process(broker.pid)
    report(honest)  # of the time before
    before = private_bytes(process)
    seen = ABUSES[name](broker.port, size)
    grown = private_bytes(process) - before
    felt = report(honest)
    if name in UNDO:
        UNDO[name](broker.port, size)
    assert is_right(seen), seen
    assert felt["lost"] == 0, felt
    assert grown < growth_mib * MIB, f"{grown / MIB:.1f} MiB more"
