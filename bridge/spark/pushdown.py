"""Predicate pushdown: Spark's filters as conditions of the source.

Owns the conversion. conditions.py evaluates the conditions, on file names and on records.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from bridge.spark.conditions import BY_NAME, BY_RECORD, Condition

HOWS: dict[type[Filter], str] = {
    EqualTo: "=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    In: "in",
    StringStartsWith: "starts",
}


def condition_of(spark_filter: Filter) -> Condition | None:
    """The condition for a filter of Spark, if it is usable here."""
    how, parts = HOWS.get(type(spark_filter)), vars(spark_filter)
    column = ".".join(parts.get("attribute", ()))
    if how is None or column not in BY_NAME | BY_RECORD | {"offset"}:
        return None
    values = tuple(parts["value"]) if how == "in" else (parts["value"],)
    if None in values or any(isinstance(value, datetime) and value.tzinfo is None for value in values):
        return None
    return Condition(column, how, values if how == "in" else values[0])
