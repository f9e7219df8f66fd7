"""Histories of a fleet, each with the publishers' ledger held against the lake at its end.

A scenario takes machine(name, **settings), which makes a machine with the ledger of all, and the lake.  It
asserts 0 losses, 0 doubles and the verdict `complete` by Ledger.check().
"""

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.support.fleet import Lake, Machine
from tests.support.waiting import wait_until

SECOND = 1_700_000_000
CLOCKS = {"right": "", "past": str(SECOND - 10**9), "same second": f"{SECOND}!"}

Make = Callable[..., Machine]


def lost_state(machine: Make, lake: Lake, clock: str) -> None:
    """A box is re-imaged; its clock is right, in the past, or at the second of its first epoch."""
    first = machine("before", clock=f"{SECOND}!")
    first.run(300)
    first.reimage()
    again = machine("after", clock=CLOCKS[clock])
    again.run(500)
    assert len(again.ledger.acknowledged) == 800
    again.ledger.check(lake)


def taken_edge_id(machine: Make, lake: Lake) -> None:
    """Two machines with one edge id run; the second drains when the first has stopped."""
    one, two = machine("one"), machine("two")
    one.start()
    one.publish(100)
    one.drain()
    two.start()
    two.publish(150)
    wait_until(lambda: _is_refused(two))
    said = two.bridge()
    for installation in (one.installation, two.installation):
        assert f"installation {installation}" in said["last_error"]
    assert said["condition"] == "retrying"
    wait_until(lambda: two.bridge()["lag_records"] == 150)
    one.publish(50)
    one.drain()
    one.stop()
    two.drain()
    two.stop()
    two.ledger.check(lake)


def started_together(machine: Make, lake: Lake) -> None:
    """Two machines with one edge id start at the same time; either may be the first."""
    both = machine("one"), machine("two")
    with ThreadPoolExecutor(len(both)) as pool:
        list(pool.map(Machine.start, both))
    for it in both:
        it.publish(100)
    wait_until(lambda: any(map(_is_refused, both)))
    refused = next(filter(_is_refused, both))
    (drains,) = (it for it in both if it is not refused)
    for it in (drains, refused):
        it.drain()
        it.stop()
    drains.run(30)
    drains.ledger.check(lake)


def in_turns(machine: Make, lake: Lake) -> None:
    """Two machines with one edge id run one after the other, twice."""
    one, two = machine("one"), machine("two")
    for _ in range(2):
        one.run(60)
        two.run(90)
    one.ledger.check(lake)


def clone(machine: Make, lake: Lake) -> None:
    """A machine is copied; the copy drains when the original has stopped."""
    original = machine("original")
    original.run(100)
    copy = _copy_of(original, machine)
    assert copy.installation == original.installation
    original.start()
    original.publish(70)
    original.drain()
    copy.start()
    copy.publish(120)
    wait_until(lambda: "one state directory is a copy of the other" in copy.bridge()["last_error"])
    assert "nothing is removed" in copy.bridge()["remedy"]
    assert "records that both logs have are then in the lake under both edge ids" in copy.bridge()["remedy"]
    original.stop()
    copy.drain()
    copy.stop()
    original.run(30)
    original.ledger.check(lake)


def clone_with_edge_id(machine: Make, lake: Lake) -> None:
    """A copy gets an edge id of its own, as the refusal says; what its log holds is drained under that id."""
    original = machine("original")
    original.run(40)
    logged = [*original.ledger.acknowledged] if original.durability == "interval" else []
    copy = _copy_of(original, machine)
    original.start()
    original.publish(30)
    original.drain()
    copy.edge, copy.bridge_name = "plant-2", "lake-2"
    copy.start()
    copy.publish(50)
    copy.drain()
    original.stop()
    copy.stop()
    copy.ledger.check(lake, copied=logged)


def _copy_of(original: Machine, machine: Make) -> Machine:
    copy = machine("clone")
    shutil.copytree(original.directory, copy.directory)
    return copy


def backup(machine: Make, lake: Lake) -> None:
    """A state directory comes back from a backup after a reboot."""
    box = machine("box")
    box.run(100)
    kept = box.directory.with_name("backup")
    shutil.copytree(box.state_dir, kept)
    box.reboot()
    box.run(200)
    box.reboot()
    shutil.rmtree(box.state_dir)
    shutil.copytree(kept, box.state_dir)
    box.run(300)
    box.ledger.check(lake)


def lost_state_with_rings(machine: Make, lake: Lake) -> None:
    """A state directory is lost while the rings live."""
    box = machine("box")
    box.run(100)
    before = box.installation
    shutil.rmtree(box.state_dir)
    box.run(100)
    assert box.installation == before
    box.ledger.check(lake)


def renamed_edge(machine: Make, lake: Lake) -> None:
    """An edge gets another id while records wait, and `rename-edge` tells the bridge."""
    box = machine("box")
    _leave_waiting(box)
    box.kill()
    box.edge = "plant-2"
    box.start()
    box.publish(10)
    wait_until(lambda: box.bridge()["condition"] == "blocked")
    wait_until(lambda: box.bridge()["lag_records"] == 110)
    assert "brim bridge rename-edge plant plant-2" in box.bridge()["remedy"]
    box.command("bridge", "rename-edge", "plant", "plant-2", "--config", str(box.config))
    wait_until(lambda: box.bridge()["condition"] == "paused")
    box.command("bridge", "resume")
    box.drain()
    box.stop()
    assert lake.edges() == {"plant", "plant-2"}
    box.ledger.check(lake)


def renamed_stream(machine: Make, lake: Lake) -> None:
    """A stream gets another name while records wait; with a log, the memory is lost too."""
    box = machine("box", stream="old")
    _leave_waiting(box)
    box.stop()
    if box.durability == "interval":
        box.reboot()
    box.stream = "new"
    box.start()
    box.publish(20)
    box.command("bridge", "resume")
    box.drain()
    box.stop()
    box.ledger.check(lake)


def _leave_waiting(box: Machine) -> None:
    """Start it; 50 records are drained, and 100 wait."""
    box.start()
    box.publish(50)
    box.drain()
    box.command("bridge", "pause")
    box.publish(100)


def changed_partitions(machine: Make, lake: Lake) -> None:
    """A stream has 1, 4, 2 and 1 partitions, one after the other."""
    box = machine("box")
    for partitions in (1, 4, 2, 1):
        box.partitions = partitions
        box.run(80)
    box.ledger.check(lake)


def _is_refused(machine: Machine) -> bool:
    return "drains this edge there" in machine.bridge()["last_error"]


SCENARIOS: Mapping[str, Callable[[Make, Lake], None]] = {
    **{f"re-imaged, clock {clock}": partial(lost_state, clock=clock) for clock in CLOCKS},
    "one edge id, the second later": taken_edge_id,
    "one edge id, together": started_together,
    "one edge id, in turns": in_turns,
    "clone": clone,
    "clone with an edge id": clone_with_edge_id,
    "backup restored": backup,
    "state lost, rings live": lost_state_with_rings,
    "edge renamed": renamed_edge,
    "stream renamed": renamed_stream,
    "partitions 1, 4, 2, 1": changed_partitions,
}
