"""Checks of the machine: kernel, limits, shared memory, clock, versions of packages."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from edge.config.schema import Config
from edge.doctor.findings import Finding, error, nearest, ok, warning
from edge.server.memory_budget import fitted_limits, lowered_limits, misfit
from edge.streams.ring_sizes import fitted_to_memory
from ringbuf.extras import install_package
from ringbuf.free_memory import free_memory_bytes

KERNEL_MIN = (5, 16)  # futex_waitv
FILES_MIN = 4_096
CLOCK_ERROR = 5  # TIME_ERROR of adjtimex(2): not synchronized
MIB = 1 << 20


def check_machine(config: Config, *, runs: bool, memory_bytes: int) -> Iterator[Finding]:
    """All checks of this file. `runs`: a broker has its rings already. `memory_bytes`: that it may use."""
    yield _kernel(platform.release())
    yield from _limits()
    fitting = fitted_limits(fitted_to_memory(config, memory_bytes), memory_bytes)
    yield _shared_memory(fitting, runs=runs)
    yield _memory(fitting, memory_bytes)
    yield _clock(_clock_state())
    yield from _packages()


def _kernel(release: str) -> Finding:
    numbers = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    limit = ".".join(map(str, KERNEL_MIN))
    if numbers < KERNEL_MIN:
        fix = f"install Linux {limit} or newer; with an older one a reader of several rings polls"
        return warning("kernel", release, f"at least {limit}", fix)
    return ok("kernel", release, f"at least {limit}")


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    value = "no limit" if hard == resource.RLIM_INFINITY else f"{soft}, up to {hard}"
    if hard != resource.RLIM_INFINITY and hard < FILES_MIN:
        fix = "set LimitNOFILE=65536 in the unit, or `ulimit -Hn 65536` before the start"
        yield warning("open files", value, f"at least {FILES_MIN}: each client takes one", fix)
    else:
        yield ok("open files", value, f"at least {FILES_MIN}")
    hard = resource.getrlimit(resource.RLIMIT_RTPRIO)[1]
    value = "no limit" if hard == resource.RLIM_INFINITY else str(hard)
    yield ok("real-time priority", value, 'any: only the log of durability "disk" uses it')


def _shared_memory(config: Config, *, runs: bool) -> Finding:
    """Room for the rings in the file system of runtime_dir."""
    place = nearest(config.runtime_dir)
    usage = os.statvfs(place)
    free, size = usage.f_bavail * usage.f_frsize // MIB, usage.f_blocks * usage.f_frsize // MIB
    rings = sum(ring.partitions * ring.ring_bytes for ring in config.stream)
    needed = (rings + sum(ring.ring_bytes for ring in config.producer)) // MIB
    value, limit = f"{free} MiB free of {size} MiB at {place}", f"{needed} MiB for rings"
    memory = free_memory_bytes(place) // MIB
    if runs or min(free, memory) >= needed:
        return ok("shared memory", value, limit)
    if free >= needed:
        fix = "lower ring_bytes or partitions, end other programs, or add memory"
        return error("shared memory", f"{memory} MiB of memory free", limit, fix)
    fix = f"lower ring_bytes or partitions, or `mount -o remount,size={2 * (needed + size - free)}m {place}`"
    return error("shared memory", value, limit, fix)


def _memory(config: Config, memory_bytes: int) -> Finding:
    """Memory for rings and full tables."""
    value = f"{memory_bytes // MIB} MiB that the broker may use"
    if text := misfit(config, memory_bytes):
        limit, _, fix = text.partition("; ")
        return warning("memory", value, limit, fix)
    lowered = ", ".join(lowered_limits(config))
    return ok("memory", value, f"all tables fit; lowered: {lowered}" if lowered else "all tables fit")


def _clock_state() -> int:
    """State of adjtimex(2), which changes nothing with an empty request; -1: unknown."""
    buffer = ctypes.create_string_buffer(256)  # struct timex has 208 bytes
    try:
        return int(ctypes.CDLL(None, use_errno=True).adjtimex(buffer))
    except (AttributeError, OSError):
        return -1


def _clock(state: int) -> Finding:
    if state == CLOCK_ERROR:
        fix = "start a time service: `timedatectl set-ntp true`, or install chrony"
        return warning("clock", "not synchronized", "synchronized: certificates and ages need it", fix)
    return ok("clock", "synchronized" if state >= 0 else "unknown")


def _packages() -> Iterator[Finding]:
    try:
        needed = requires("brim") or []
    except PackageNotFoundError:
        yield warning("packages", "brim has no metadata", "installed by pip", "install brim by pip")
        return
    wrong = False
    for line in needed:
        requirement, _, marker = line.partition(";")
        if not marker.strip() and (package := _package(requirement)) is not None:
            wrong = True
            yield package
    if not wrong:
        yield ok("packages", f"brim {version('brim')} and its requirements")


def _package(requirement: str) -> Finding | None:
    """Finding for a package that is missing or too old."""
    match = re.match(r"\s*([\w.-]+).*?>=\s*([\d.]+)", requirement)
    if match is None:
        return None
    name, least = match[1], match[2]
    fix = install_package(requirement.strip())
    try:
        installed = version(name)
    except PackageNotFoundError:
        return error(f"package {name}", "not installed", f"at least {least}", fix)
    return (
        None
        if _numbers(installed) >= _numbers(least)
        else error(f"package {name}", installed, f"at least {least}", fix)
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
