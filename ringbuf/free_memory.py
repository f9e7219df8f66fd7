"""Memory of this process: the limit, and the free bytes, which a new ring may take without taking memory from
other programs.

tmpfs accepts a file as long as the file system has space, also if the machine or the control group has less
free memory.  The kernel then ends processes, of any program, until memory is free.

Owns the reading of /proc/meminfo, /proc/self/mountinfo and of control groups, of both versions:
proc_meminfo(5), proc_pid_mountinfo(5), cgroups(7).  Never allocates memory for a ring.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
SPARE_PARTS = 32  # 1/32 of all memory is left to other programs
SPARE_BYTES = 32 << 20  # at least: a broker grows by half of that after its start; but
SPARE_MOST_PARTS = 4  # 1/4 of a small memory at most
MACHINE_SPARE_PARTS = 4  # 1/4 of the machine is for other programs, which have limits of their own
GROUP_FILES = {  # by the version of control groups: limit, use, and a line of memory.stat
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def free_memory_bytes(directory: Path, root: Path = Path("/")) -> int:
    """Bytes that a file in `directory` may take; sys.maxsize if it needs no memory, or nothing is known.

    `root`: the directory with proc and sys.  Raises OSError if `directory` does not exist.
    """
    if not _in_memory(directory, root):
        return sys.maxsize
    groups = (limit - spare_bytes(limit) - used for limit, used in _groups(root))
    return max(0, min([*_of_machine(root), *groups], default=sys.maxsize))


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may use: the least limit of its control groups, of the groups above
    them, and of its address space, and three quarters of the machine; sys.maxsize if nothing is known.
    """
    machine_bytes = _numbers(root / "proc/meminfo").get("MemTotal", 0) * 1024
    limits = [machine_bytes - machine_bytes // MACHINE_SPARE_PARTS] if machine_bytes else []
    limits += [limit for limit, _ in _groups(root)]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(soft)
    return min(limits, default=sys.maxsize)


def _in_memory(directory: Path, root: Path) -> bool:
    device = os.stat(directory).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in _lines(root / "proc/self/mountinfo"):
        fields = line.split(" ")
        if len(fields) > 2 and fields[2] == wanted:
            return line.partition(" - ")[2].split(" ")[0] in IN_MEMORY
    return False


def _of_machine(root: Path) -> Iterator[int]:
    known = _numbers(root / "proc/meminfo")
    if "MemAvailable" in known:
        free_kib = known["MemAvailable"] + known.get("SwapFree", 0)
        yield free_kib * 1024 - spare_bytes(known.get("MemTotal", 0) * 1024)


def spare_bytes(memory_bytes: int) -> int:
    """Bytes of a memory that are left to programs, among them the owner of the ring."""
    return max(memory_bytes // SPARE_PARTS, min(SPARE_BYTES, memory_bytes // SPARE_MOST_PARTS))


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of the process's control groups and of each group above them that has a limit."""
    top = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0":
            yield from _of_group(top, path, 2)
        elif "memory" in controllers.split(","):
            yield from _of_group(top / "memory", path, 1)


def _of_group(top: Path, path: str, version: int) -> Iterator[tuple[int, int]]:
    group = top / path.strip("/")
    limit_file, used_file, cache_line = GROUP_FILES[version]
    for place in (group, *group.parents):
        if not place.is_relative_to(top):
            return
        with suppress(OSError, ValueError):  # "max", or a group without the memory controller
            limit = int((place / limit_file).read_text())
            used = int((place / used_file).read_text())
            cache = _numbers(place / "memory.stat").get(cache_line, 0)
            yield limit, max(0, used - cache)


def _numbers(path: Path) -> dict[str, int]:
    """`name: number` or `name number` of each line."""
    fields = [line.replace(":", " ").split() for line in _lines(path)]
    return {line[0]: int(line[1]) for line in fields if len(line) > 1 and line[1].isdecimal()}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
