"""Conditions of a query on columns, from options or pushed down by Spark.

A condition excludes
  * whole files, by their names: edge, stream, partition, epoch, offset, and `since` by the day of draining,
    which is not before the day of the records; then by the times in their footers.  Times of records rise,
    except after a clock was set back: a day is allowed for that;
  * then records, before their payloads are decoded: offset, timestamp, topic, qos, retain.

An excluded record does not fulfil the condition. For a condition that Spark pushed down, some of the
remaining records may not fulfil it either, because Spark checks them again. Conditions of options are exact.
A record that does not verify has only its identity, so it is not excluded by its time or topic.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bridge.arrow.schema import TYPES, DecodedColumns
from bridge.format.file_name import FileName
from bridge.payloads.schema import filter_pattern

BY_NAME: Final = frozenset({"edge", "stream", "partition", "epoch"})
BY_RECORD: Final = frozenset({"timestamp", "topic", "qos", "retain"})
SET_BACK: Final = timedelta(days=1)
OFFSET_MAX: Final = (1 << 64) - 1

PLAIN: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda value, values: value in values,
    "starts": lambda value, with_what: str(value).startswith(with_what),
    "filter": lambda value, pattern: re.fullmatch(pattern, value, re.DOTALL) is not None,
}
COMPUTED: Final = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. `how` is a key of PLAIN; "in" has a tuple, "filter" a pattern for topics."""

    column: str
    how: str
    value: Any

    @classmethod
    def of_topics(cls, *topic_filters: str) -> Condition:
        """Condition for any of these topic filters. Raises SourceOptionError."""
        return cls(
            "topic",
            "filter",
            "|".join(f"(?:{filter_pattern(topic_filter)})" for topic_filter in topic_filters),
        )

    def holds(self, value: Any) -> bool:
        """True if the value fulfils the condition."""
        return PLAIN[self.how](value, self.value)


@dataclass(frozen=True, slots=True)
class Where:
    """Conjunction of these conditions."""

    conditions: tuple[Condition, ...] = ()

    def and_also(self, *more: Condition) -> Where:
        """The conjunction with these conditions added."""
        return Where((*self.conditions, *more))

    @property
    def columns(self) -> set[str]:
        """Columns of a record that the conditions need."""
        return {condition.column for condition in self.conditions} & BY_RECORD

    def may_be_in(self, name: FileName) -> bool:
        """True if a file of this name can hold a wanted record."""
        if not all(
            condition.holds(getattr(name, condition.column))
            for condition in self.conditions
            if condition.column in BY_NAME
        ):
            return False
        first, last = self.offsets
        return first <= name.last_offset and name.first_offset <= last and name.day >= self._first_day

    @property
    def has_times(self) -> bool:
        """True if conditions on the timestamp can exclude a file by the times in its footer."""
        return any(
            condition.column == "timestamp" and condition.how in COMPUTED for condition in self.conditions
        )

    def may_be_between(self, first_ns: int, last_ns: int) -> bool:
        """True: a file whose first and last record have these times can hold a wanted record."""
        low, high = sorted((first_ns, last_ns))
        earliest, latest = _utc(low) - SET_BACK, _utc(high) + SET_BACK
        return all(
            (condition.how in {">", ">="} or condition.value >= earliest)
            and (condition.how in {"<", "<="} or condition.value <= latest)
            for condition in self.conditions
            if condition.column == "timestamp" and condition.how in COMPUTED
        )

    @property
    def offsets(self) -> tuple[int, int]:
        """The smallest range with all wanted offsets."""
        first, last = 0, OFFSET_MAX
        for condition in self.conditions:
            if condition.column != "offset" or (condition.how == "in" and not condition.value):
                continue
            if condition.how in {"=", ">", ">=", "in"}:
                first = max(
                    first,
                    (min(condition.value) if condition.how == "in" else condition.value)
                    + (condition.how == ">"),
                )
            if condition.how in {"=", "<", "<=", "in"}:
                last = min(
                    last,
                    (max(condition.value) if condition.how == "in" else condition.value)
                    - (condition.how == "<"),
                )
        return first, last

    @property
    def _first_day(self) -> str:
        times = [
            condition.value
            for condition in self.conditions
            if condition.column == "timestamp" and condition.how in {"=", ">", ">="}
        ]
        return (max(times).astimezone(UTC) - SET_BACK).strftime("%Y-%m-%d") if times else ""

    def of(self, decoded: DecodedColumns) -> DecodedColumns:
        """The wanted rows; their offsets may then have gaps."""
        mask = None
        for condition in self.conditions:
            if condition.column in BY_RECORD:
                one = _mask(condition, decoded.columns[condition.column])
                mask = one if mask is None else pc.and_(mask, one)
        if mask is None or mask.true_count == decoded.rows:
            return decoded
        columns = {name: array.filter(mask) for name, array in decoded.columns.items()}
        return DecodedColumns(decoded.first_offset, mask.true_count, columns)


def _utc(ns: int) -> datetime:
    return datetime.fromtimestamp(ns / 1e9, UTC)


def _mask(condition: Condition, values: pa.Array) -> pa.Array:
    if condition.column != "topic":
        value = condition.value
        if condition.how == "in":
            return pc.is_in(values, pa.array(value, TYPES[condition.column]))
        return COMPUTED[condition.how](values, pa.scalar(value, TYPES[condition.column]))
    encoded = values.dictionary_encode()
    holding = [condition.holds(topic) for topic in encoded.dictionary.to_pylist()]
    return pa.array(holding, pa.bool_()).take(encoded.indices)


def moment(text: str) -> datetime:
    """An ISO date or time, UTC without a time zone. Raises ValueError."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)
