"""Free memory limits new rings, and the default sizes of rings."""

import errno
import os
import resource
import sys
from pathlib import Path

import pytest

from edge.config.loader import load, parse
from edge.config.schema import Config
from edge.doctor import machine
from edge.doctor.findings import Finding, Severity
from edge.streams import ring_sizes
from edge.streams.ring_sizes import fitted
from ringbuf import Ring, shared_mapping
from ringbuf.free_memory import free_memory_bytes, memory_limit_bytes
from ringbuf.ring import ring_file

KIB, MIB = 1 << 10, 1 << 20


def machine_root(root: Path, place: Path, *, kind: str = "tmpfs", group: str = "") -> Path:
    """A directory with the files of proc and sys: 3,200 MiB of memory, 500 MiB available, 20 MiB of swap."""
    proc, device = root / "proc/self", os.stat(place).st_dev
    proc.mkdir(parents=True)
    number = f"{os.major(device)}:{os.minor(device)}"
    (proc / "mountinfo").write_text(
        f"20 1 0:5 / /proc rw - proc proc rw\n21 1 {number} / {place} rw,nosuid shared:3 - {kind} {kind} rw\n"
    )
    (proc / "cgroup").write_text(f"4:memory:/other\n0::/{group}\n")
    (root / "proc/meminfo").write_text(
        f"MemTotal:       {3_200 * KIB} kB\nMemFree: 1 kB\n"
        f"MemAvailable:    {500 * KIB} kB\nSwapFree: {20 * KIB} kB\nHugePages_Total: 0\n"
    )
    return root


def limit_group(root: Path, group: str, limit: str, current: int, inactive_file: int) -> None:
    place = root / "sys/fs/cgroup" / group
    place.mkdir(parents=True, exist_ok=True)
    (place / "memory.max").write_text(f"{limit}\n")
    (place / "memory.current").write_text(f"{current}\n")
    (place / "memory.stat").write_text(f"anon 5\nfile 7\ninactive_file {inactive_file}\n")


def test_a_thirty_second_of_all_memory_is_left_to_other_programs(tmp_path: Path) -> None:
    root = machine_root(tmp_path / "root", tmp_path)
    assert free_memory_bytes(tmp_path, root) == (500 + 20 - 100) * MIB


def test_a_file_on_a_disk_needs_no_memory(tmp_path: Path) -> None:
    root = machine_root(tmp_path / "root", tmp_path, kind="ext4")
    assert free_memory_bytes(tmp_path, root) == sys.maxsize


def test_an_unknown_machine_sets_no_limit(tmp_path: Path) -> None:
    assert free_memory_bytes(tmp_path, tmp_path / "none") == sys.maxsize


def test_the_limits_of_all_control_groups_count_and_cached_files_are_free(tmp_path: Path) -> None:
    root = machine_root(tmp_path / "root", tmp_path, group="system.slice/brim.service")
    limit_group(root, "system.slice/brim.service", "max", 900 * MIB, 0)
    assert free_memory_bytes(tmp_path, root) == 420 * MIB
    limit_group(root, "system.slice", str(320 * MIB), 100 * MIB, 40 * MIB)
    assert free_memory_bytes(tmp_path, root) == (320 - 32 - 60) * MIB
    limit_group(root, "", str(64 * MIB), 90 * MIB, 0)
    assert free_memory_bytes(tmp_path, root) == 0


def test_the_limit_of_a_control_group_of_version_1_counts(tmp_path: Path) -> None:
    root = machine_root(tmp_path / "root", tmp_path)
    group = root / "sys/fs/cgroup/memory/other"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(f"{160 * MIB}\n")
    (group / "memory.usage_in_bytes").write_text(f"{30 * MIB}\n")
    (group / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {10 * MIB}\n")
    assert free_memory_bytes(tmp_path, root) == (160 - 32 - 20) * MIB
    (group.parent / "memory.limit_in_bytes").write_text(f"{(1 << 63) - 4096}\n")  # no limit
    (group.parent / "memory.usage_in_bytes").write_text("1\n")
    assert free_memory_bytes(tmp_path, root) == (160 - 32 - 20) * MIB


def test_the_limit_of_memory_is_the_least_of_machine_and_control_groups(tmp_path: Path) -> None:
    root = machine_root(tmp_path / "root", tmp_path, group="system.slice/brim.service")
    assert memory_limit_bytes(root) == 2_400 * MIB  # a quarter of the machine is for other programs
    limit_group(root, "system.slice/brim.service", "max", 900 * MIB, 0)
    assert memory_limit_bytes(root) == 2_400 * MIB
    limit_group(root, "system.slice", str(320 * MIB), 100 * MIB, 40 * MIB)
    assert memory_limit_bytes(root) == 320 * MIB
    group = root / "sys/fs/cgroup/memory"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(f"{160 * MIB}\n")  # of a container: its group is the top
    (group / "memory.usage_in_bytes").write_text("1\n")
    assert memory_limit_bytes(root) == 160 * MIB


def test_the_limit_of_the_address_space_is_a_limit_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memory_limit_bytes(tmp_path / "none") == sys.maxsize
    monkeypatch.setattr(resource, "getrlimit", lambda _: (300 * MIB, resource.RLIM_INFINITY))
    assert memory_limit_bytes(tmp_path / "none") == 300 * MIB


def test_a_small_memory_leaves_a_quarter_to_the_broker(tmp_path: Path) -> None:
    root = machine_root(tmp_path / "root", tmp_path, group="box")
    limit_group(root, "box", str(64 * MIB), 24 * MIB, 0)
    assert free_memory_bytes(tmp_path, root) == (64 - 16 - 24) * MIB


def test_files_that_are_no_numbers_are_ignored(tmp_path: Path) -> None:
    root = machine_root(tmp_path / "root", tmp_path)
    (root / "proc/meminfo").write_bytes(b"MemAvailable: \xff kB\nMemTotal\n\n")
    limit_group(root, "", "many", 1, 1)
    assert free_memory_bytes(tmp_path, root) == sys.maxsize


def test_this_machine_has_free_memory(runtime_directory: Path) -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < free_memory_bytes(runtime_directory) < 4 * total


def test_a_ring_larger_than_the_free_memory_is_refused_and_no_file_is_left(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_mapping, "free_memory_bytes", lambda _: 5 * MIB)
    with pytest.raises(OSError, match=r"the free memory \(5242880 bytes\); lower capacity") as caught:
        Ring.create(runtime_directory / "a", capacity_bytes=8 * MIB, epoch=1)
    assert caught.value.errno == errno.ENOMEM
    assert os.listdir(runtime_directory) == []


def test_a_shortened_ring_is_not_extended_into_memory_that_is_not_free(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ring.create(runtime_directory / "a", capacity_bytes=MIB, epoch=1) as ring:
        path = ring.path
    os.truncate(ring_file(path), 1 << 19)
    monkeypatch.setattr(shared_mapping, "free_memory_bytes", lambda _: 1 << 18)
    with pytest.raises(OSError, match="more than the free memory"):
        Ring.reattach(path)
    monkeypatch.undo()
    Ring.reattach(path).close()


@pytest.fixture
def config(runtime_directory: Path, tmp_path: Path) -> Config:
    """The defaults, with directories of their own."""
    file = tmp_path / "brim.toml"
    file.write_text(f'runtime_dir = "{runtime_directory}"\nstate_dir = "{tmp_path}"\n')
    return load(file)


def test_default_rings_fit_the_free_memory(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_sizes, "free_memory_bytes", lambda _: 40 * MIB)
    rings = fitted(config, sys.maxsize).stream
    assert sum(stream.ring_bytes * stream.partitions for stream in rings) < 40 * MIB
    assert any(new.ring_bytes < old.ring_bytes for new, old in zip(rings, config.stream, strict=True))


def test_doctor_reports_limits_that_need_more_than_the_memory() -> None:
    def finding(text: str) -> Finding:
        found = machine.check_machine(parse(text), runs=False, memory_bytes=160 * MIB)
        return next(one for one in found if one.check == "memory")

    fits, written = finding(""), finding("[limits]\nretained_max_bytes = '256 MiB'\n")
    assert (fits.state, written.state) == (Severity.OK, Severity.WARNING)
    assert "lowered: connections_max, " in fits.limit
    assert written.value == "160 MiB that the broker may use"
    assert "limits.retained_max_bytes 281 MiB" in written.fix


def test_doctor_reports_rings_that_need_more_than_the_free_memory(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "free_memory_bytes", lambda _: 3 * MIB)
    finding = machine._shared_memory(config, runs=False)
    assert (finding.state, finding.value) == (Severity.ERROR, "3 MiB of memory free")
    assert machine._shared_memory(config, runs=True).state is Severity.OK
