"""Memory budget: the tables of [limits] together fit the memory that the broker may use.

Owns the cost of each table, its share, and the choice of the values that are not configured, at the start of
the broker and at a reload. A configured value is never changed: misfit() reports a sum that does not fit.
The memory is a limit (ringbuf/free_memory.py), not what is free now. So each start has the same limits, and
a start after a kill reads back no more than the run before had.

    memory = spare (programs, and the broker itself) + rings + tables

The shares divide the memory that configured tables and the least values leave. A table whose default needs
less than its share leaves the rest to the others.
"""

from __future__ import annotations

import logging
import sys
from typing import NamedTuple

from msgspec.structs import asdict, replace

from edge.config.limits import DefaultSize, LoweredSize
from edge.config.schema import Config
from edge.logging_setup import pairs
from ringbuf.constants import HEADER_BYTES
from ringbuf.free_memory import spare_bytes

log = logging.getLogger(__name__)

MIB = 1 << 20
PROGRAMS_BYTES = 36 * MIB  # the broker without tables, and a command, such as the health check of a container
LOG_BYTES = 20 * MIB  # these three were measured at the highest rate
BRIDGE_FILES = 11  # memory of a bridge, in files of file_bytes
CONSOLE_BYTES = 30 * MIB
RETAINED_PARTS = 2  # retained messages take half of the topics: a topic that has one is never forgotten
PARTS = 4  # default tables share a quarter of the memory at least, also if misfit() reports the sum
STEP = 100  # of a share


class _TableCost(NamedTuple):
    """Setting of [limits] that bounds a table."""

    setting: str
    cost: float  # bytes of memory for each unit of the setting; measured with full tables
    share: int
    least: int = MIB  # value without a share


def fitted_limits(config: Config, memory_bytes: int) -> Config:
    """`config` with lower limits, where they are defaults and the memory has no room for all full tables."""
    tables = [table for table in _tables(config) if isinstance(_value(config, table), DefaultSize)]
    tables.sort(key=lambda table: table.cost * _value(config, table) / table.share)
    room = _allowed_bytes(memory_bytes) - _fixed_bytes(config)
    room -= sum(_cost(config, table) for table in _tables(config) if table not in tables)
    room = max(room, memory_bytes // PARTS) - int(sum(table.cost * table.least for table in tables))
    shares = sum(table.share for table in tables)
    lowered: dict[str, int] = {}
    for table in tables:
        more = int(max(room, 0) * table.share / shares / table.cost) // STEP * STEP
        if table.least + more < _value(config, table):
            lowered[table.setting] = LoweredSize(table.least + more)
        else:
            more = _value(config, table) - table.least
        room -= int(more * table.cost)
        shares -= table.share
    retained_max = LoweredSize(lowered.get("topics_max", sys.maxsize) // RETAINED_PARTS)
    if isinstance(config.limits.retained_max, DefaultSize) and retained_max < config.limits.retained_max:
        lowered["retained_max"] = retained_max
    return replace(config, limits=replace(config.limits, **lowered)) if lowered else config


def misfit(config: Config, memory_bytes: int) -> str:
    """Sentence about rings and full tables that need more than the memory; "" if all fit."""
    needed = _fixed_bytes(config) + sum(_cost(config, table) for table in _tables(config))
    allowed = _allowed_bytes(memory_bytes)
    if needed <= allowed:
        return ""
    costs = sorted(((_cost(config, table), table.setting) for table in _tables(config)), reverse=True)
    largest = ", ".join(f"limits.{setting} {cost // MIB} MiB" for cost, setting in costs[:3])
    return (
        f"rings and full tables need {-(-needed // MIB)} MiB, more than {allowed // MIB} of the "
        f"{memory_bytes // MIB} MiB of memory that the broker may use, and then the kernel ends it; lower "
        f"ring_bytes or [limits] (largest: {largest}), or raise MemoryMax= of the service, or --memory of "
        "the container"
    )


def lowered_limits(config: Config) -> dict[str, int]:
    """Values that fitted_limits() has lowered, by setting."""
    values = asdict(config.limits)
    return {name: value for name, value in values.items() if isinstance(value, LoweredSize)}


def log_budget(config: Config, memory_bytes: int) -> None:
    """Log the limits that were lowered, and a sum that does not fit."""
    if lowered := lowered_limits(config):
        log.info("limits lowered to fit the memory %s", pairs(memory_bytes=memory_bytes, **lowered))
    if text := misfit(config, memory_bytes):
        log.warning("memory too small: %s", text)


def _tables(config: Config) -> tuple[_TableCost, ...]:
    saved = _saved_times(config)
    longest = max([config.packet_max_bytes, *(one.packet_max_bytes or 0 for one in config.listener)])
    packets = -(-2 * longest // MIB) * MIB  # the least that engine_limits() takes
    return (
        _TableCost("connections_max", 2_048, 3, 1_000),
        _TableCost("sessions_max", 3_072 + 200 * saved, 4, 1_000),
        _TableCost("topics_max", 360, 8, 1_000),
        _TableCost("topics_max_bytes", 2, 4),  # a name is in the table, and its levels in the tree
        _TableCost("filters_max_bytes", 2, 3),
        _TableCost("queues_max_bytes", 1.1 + saved, 10),
        _TableCost("retained_max_bytes", 1.1, 5),
        _TableCost("wills_max_bytes", 1.1 + saved, 1),
        _TableCost("spill_max_bytes", 1, 1),
        _TableCost("unfinished_max_bytes", 1.1, 1, packets),
    )


def _allowed_bytes(memory_bytes: int) -> int:
    """Memory for rings and tables."""
    return max(0, memory_bytes - max(spare_bytes(memory_bytes), PROGRAMS_BYTES))


def _saved_times(config: Config) -> float:
    """Times that memory has the saved sessions, in addition to the tables.

    Pieces of a snapshot wait for their file. A file system in memory has the snapshot, its copy, the next
    one, and the reserve, which is a quarter longer.
    """
    if not config.sessions.keep:
        return 0
    return 1.1 if config.sessions_durability.is_logged else 5.4


def _fixed_bytes(config: Config) -> int:
    """Memory of rings, and of parts without a limit of their own."""
    rings = [ring.ring_bytes for ring in config.stream for _ in range(ring.partitions)]
    rings += [ring.ring_bytes for ring in config.producer]
    if config.sessions.keep:
        rings.append(config.sessions.journal_bytes)
    parts = sum(BRIDGE_FILES * bridge.file_bytes for bridge in config.bridge if bridge.in_broker)
    parts += LOG_BYTES * any(stream.durability.is_logged for stream in config.stream)
    return sum(rings) + len(rings) * HEADER_BYTES + parts + CONSOLE_BYTES * bool(config.web.listen)


def _value(config: Config, table: _TableCost) -> int:
    value: int = getattr(config.limits, table.setting)
    return value


def _cost(config: Config, table: _TableCost) -> int:
    return int(table.cost * max(_value(config, table), table.least))
