"""Devices of a table: records and bytes of each topic, by Spark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from bridge.spark.tables import read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEVICES_SHOWN = 25


@dataclass(frozen=True, slots=True)
class Device:
    """Records of one topic of an edge."""

    edge: str
    topic: str
    records: int
    payload_bytes: int
    last: datetime


def devices_of(spark: SparkSession, table: str) -> tuple[list[Device], int]:
    """The devices with most bytes, and the number of all devices."""
    from pyspark.sql import functions as f

    records = read_table(spark, table)
    length = f.octet_length("payload") if "payload" in records.columns else f.lit(0)
    summary = records.groupBy("edge", "topic").agg(
        f.count("*").alias("records"),
        f.sum(length).alias("payload_bytes"),
        f.max("timestamp").alias("last"),
    )
    summary = summary.persist()
    rows = summary.orderBy(f.desc("payload_bytes"), f.desc("records"), "edge", "topic").limit(DEVICES_SHOWN)
    devices = [Device(**row.asDict()) for row in rows.collect()]
    total = summary.count()
    summary.unpersist()
    return devices, total
