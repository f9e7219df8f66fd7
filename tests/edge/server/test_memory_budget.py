"""Default limits fit the memory; configured ones stay, and are reported."""

import re
from itertools import pairwise

import pytest

from edge.config.limits import Limits, LoweredSize
from edge.config.loader import parse
from edge.config.schema import Config
from edge.server.memory_budget import fitted_limits, lowered_limits, misfit
from edge.streams.ring_sizes import fitted_to_memory
from tests.support.project import ROOT

MIB, GIB = 1 << 20, 1 << 30
LOGGED = '[[stream]]\nname = "default"\ntopics = ["#"]\ndurability = "interval"\n'
BRIDGE = '[[bridge]]\nname = "lake"\nto = "file:///lake"\n'


def fitted(text: str, memory_bytes: int) -> Config:
    return fitted_limits(fitted_to_memory(parse(text), memory_bytes), memory_bytes)


@pytest.mark.parametrize("mib", [80, 100, 128, 160, 256, 500, 1_000, 4_096])
def test_rings_and_full_tables_fit_the_memory(mib: int) -> None:
    config = fitted("", mib * MIB)
    assert misfit(config, mib * MIB) == ""
    assert misfit(config, mib * MIB // 2) != ""


@pytest.mark.parametrize("text", ["", LOGGED, BRIDGE])
def test_more_memory_lowers_no_limit(text: str) -> None:
    sizes = [fitted(text, mib * MIB).limits for mib in (16, 32, 48, 64, 96, 200, 400, 1_000, 3_000, 6_000)]
    for name in lowered_limits(fitted(text, 64 * MIB)):
        if name != "unfinished_max_bytes":  # it has room for two packets, and those depend on the ring
            assert all(getattr(less, name) <= getattr(more, name) for less, more in pairwise(sizes)), name
    assert sizes[-1] == Limits()


def test_a_memory_for_the_broker_without_a_command_is_reported() -> None:
    assert misfit(fitted("", 64 * MIB), 64 * MIB).startswith(
        "rings and full tables need 42 MiB, more than 28 "
    )


def test_all_limits_stay_where_the_memory_has_room() -> None:
    config = parse("")
    assert fitted_limits(config, 4 * GIB) is config
    assert lowered_limits(config) == {}


def test_sessions_on_a_disk_leave_more_memory_for_queues() -> None:
    assert (
        fitted(LOGGED, 256 * MIB).limits.queues_max_bytes > 2 * fitted("", 256 * MIB).limits.queues_max_bytes
    )


def test_a_configured_limit_stays_and_leaves_the_others_a_quarter_of_the_memory() -> None:
    written = fitted("[limits]\nqueues_max_bytes = '256 MiB'\nspill_max_bytes = 0\n", 512 * MIB)
    assert (written.limits.queues_max_bytes, written.limits.spill_max_bytes) == (256 * MIB, 0)
    assert {"queues_max_bytes", "spill_max_bytes"}.isdisjoint(lowered_limits(written))
    assert written.limits.connections_max > 4_000
    assert "limits.queues_max_bytes 1664 MiB" in misfit(written, 512 * MIB)


def test_retained_messages_take_half_of_the_topics_at_most() -> None:
    for mib in (64, 128, 256, 512):
        limits = fitted("", mib * MIB).limits
        assert limits.retained_max <= limits.topics_max // 2 or limits.retained_max == Limits().retained_max
    assert fitted("[limits]\nretained_max = 90000\n", 128 * MIB).limits.retained_max == 90_000
    assert fitted("[limits]\ntopics_max = 1000\n", 8 * GIB).limits.retained_max == Limits().retained_max


def test_a_configured_default_is_no_default() -> None:
    config = fitted("[limits]\nretained_max_bytes = '64 MiB'\n", 128 * MIB)
    assert config.limits.retained_max_bytes == 64 * MIB
    assert not isinstance(config.limits.retained_max_bytes, LoweredSize)


def test_packets_of_the_configured_length_have_room_for_two() -> None:
    config = fitted("[limits]\npacket_max_bytes = '2 MiB'\n", 64 * MIB)
    assert config.limits.unfinished_max_bytes >= 4 * MIB


def test_parts_without_a_limit_are_reported() -> None:
    assert misfit(fitted(BRIDGE, 160 * MIB), 160 * MIB).startswith("rings and full tables need ")
    assert misfit(fitted(BRIDGE, 256 * MIB), 256 * MIB) == ""


def test_the_documented_figures_are_those_of_the_broker() -> None:
    page = (ROOT / "docs/how-to/limits-and-quotas.md").read_text()
    rows = re.findall(r"^\| (\d+) (MiB|GiB) \| (\d+) MiB \| ([\d,]+) \| ([\d,]+) \|", page, re.MULTILINE)
    assert len(rows) == 7
    for memory, unit, ring, connections, sessions in rows:
        config = fitted("", int(memory) * (MIB if unit == "MiB" else GIB))
        assert config.stream[-1].ring_bytes == int(ring) * MIB
        assert config.limits.connections_max == int(connections.replace(",", ""))
        assert config.limits.sessions_max == int(sessions.replace(",", ""))
