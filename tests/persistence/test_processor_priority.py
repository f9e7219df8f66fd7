"""Background work: its priority and slice, which threads inherit, and its pauses."""

import ctypes
import os
import platform
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from persistence import processor_priority
from persistence.processor_priority import LOWEST, Pauses, lower_priority
from tests.support.project import ROOT

SCHED_GETATTR = {"x86_64": 315, "aarch64": 275, "armv7l": 381}
LINUX = tuple(map(int, platform.release().split(".")[:2]))

# Prints policy, nice value and slice of the thread that runs it.
SHOW = """
import ctypes, os, platform, struct, sys, threading
from persistence.processor_priority import lower_priority
def show():
    memory = ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None).syscall(%d, 0, memory, 48, 0) == 0
    _, policy, _, niceness, _, slice_ns, _, _ = struct.unpack("IIQiIQQQ", memory.raw)
    print(policy, niceness, slice_ns)
"""


def scheduling(code: str) -> list[list[int]]:
    number = SCHED_GETATTR.get(platform.machine())
    if number is None:
        pytest.skip(f"the number of sched_getattr on {platform.machine()} is not known")
    command = [sys.executable, "-c", SHOW % number + code]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [list(map(int, line.split())) for line in run.stdout.splitlines()]


def test_threads_of_background_work_inherit_its_nice_value_and_the_longest_slice() -> None:
    code = "lower_priority(19)\nshow()\nthread = threading.Thread(target=show)\nthread.start()\nthread.join()"
    own, started = scheduling(code)
    assert own == started
    assert own[:2] == [os.SCHED_BATCH, LOWEST]
    if LINUX >= (6, 12):  # earlier ones ignore the slice
        assert own[2] == processor_priority.SLICE_NS


def test_a_higher_nice_value_stays() -> None:
    present = os.getpriority(os.PRIO_PROCESS, 0)
    (own,) = scheduling("lower_priority(19)\nlower_priority(0)\nshow()")
    assert own[1] == LOWEST
    (own,) = scheduling("lower_priority(0)\nshow()")
    assert own[1] == max(present, 0)


def test_a_machine_that_is_not_known_gets_the_nice_value_only(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to = []
    monkeypatch.setattr(platform, "machine", lambda: "s390x")
    monkeypatch.setattr(os, "setpriority", lambda *values: set_to.append(values))
    monkeypatch.setattr(ctypes, "CDLL", None)
    lower_priority(LOWEST)
    assert set_to == [(os.PRIO_PROCESS, 0, LOWEST)]


@pytest.mark.parametrize(
    ("niceness", "interruptions", "used_s", "due_s"),
    [
        (LOWEST, 0, 0.0, 0.0),
        (LOWEST, 20, 0.01, 0.0),  # as threads of a query interrupt each other
        (LOWEST, 30, 0.01, 0.005),
        (LOWEST, 1_000_000, 0.01, 1.0),
        (LOWEST - 1, 30, 0.01, 0.0),
    ],
)
def test_a_pause_follows_many_interruptions_of_the_lowest_priority(
    monkeypatch: pytest.MonkeyPatch, niceness: int, interruptions: int, used_s: float, due_s: float
) -> None:
    usage = SimpleNamespace(ru_nivcsw=7, ru_utime=1.0, ru_stime=0.0)
    monkeypatch.setattr(os, "getpriority", lambda *_: niceness)
    monkeypatch.setattr(resource, "getrusage", lambda _: usage)
    pauses = Pauses()
    usage.ru_nivcsw += interruptions
    usage.ru_stime += used_s
    assert pauses.due_s() == pytest.approx(due_s)
    assert pauses.due_s() == 0.0


def test_time_without_interruptions_allows_few_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(ru_nivcsw=0, ru_utime=0.0, ru_stime=0.0)
    monkeypatch.setattr(os, "getpriority", lambda *_: LOWEST)
    monkeypatch.setattr(resource, "getrusage", lambda _: usage)
    pauses = Pauses()
    usage.ru_utime += 60.0
    assert pauses.due_s() == 0.0
    usage.ru_nivcsw += processor_priority.CREDIT_MAX
    assert pauses.due_s() == 0.0
    usage.ru_nivcsw += 10
    assert pauses.due_s() == pytest.approx(0.005)
