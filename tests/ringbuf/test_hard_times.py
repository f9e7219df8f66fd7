"""Killed writers, killed readers, hostile cursors, random bytes: short runs of tests/simulation/*.

The long ones: `./dev test -m campaign`, or each by hand, with a seed to see a failure again.
"""

import subprocess
import sys

import pytest

from tests.support.project import ROOT

SHORT = {"kill_writer": 30, "kill_reader": 30, "hostile_cursors": 1_000_000, "random_bytes": 100}
LONG = {"kill_writer": 1000, "kill_reader": 1000, "hostile_cursors": 10_000_000, "random_bytes": 3000}


def survived(simulation: str, count: int) -> str:
    """Last line of a simulation, which comes only after success."""
    command = [sys.executable, "-m", f"tests.simulation.{simulation}", "--count", str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.parametrize("simulation", SHORT)
def test_the_ring_survives(simulation: str) -> None:
    assert str(SHORT[simulation]) in survived(simulation, SHORT[simulation])


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("simulation", LONG)
def test_the_ring_survives_for_long(simulation: str) -> None:
    assert str(LONG[simulation]) in survived(simulation, LONG[simulation])
