"""Numbers of this process, with the names that Prometheus clients give them (process_*)."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping
from contextlib import suppress

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_START_TICKS = 19  # fields of /proc/self/stat, counted after the name of the command
_VIRTUAL, _RESIDENT = 20, 21


def process_numbers() -> Mapping[str, float]:
    """Values by metric name; those that /proc does not have are left out."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    numbers = {"process_cpu_seconds_total": used.ru_utime + used.ru_stime}
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY:
        numbers["process_max_fds"] = limit
    with suppress(OSError):
        numbers["process_open_fds"] = len(os.listdir("/proc/self/fd")) - 1
    with suppress(OSError), open("/proc/self/stat", encoding="latin-1") as file:
        fields = file.read().rpartition(")")[2].split()
        numbers["process_virtual_memory_bytes"] = int(fields[_VIRTUAL])
        numbers["process_resident_memory_bytes"] = int(fields[_RESIDENT]) * _PAGE_BYTES
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_START_TICKS]) / _TICKS_PER_S
        numbers["process_start_time_seconds"] = round(time.time() - age_s, 2)
    return numbers
