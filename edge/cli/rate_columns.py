"""Columns of the samples of edge/observe/rates.py, for `brim top` and `brim streams`."""

from __future__ import annotations

from edge.cli.humanize import bytes_in_words
from edge.cli.listing import Column, number_column, text_column

RING_COLUMNS = (
    text_column("ring", "ring"),
    text_column("stream", "stream"),
    text_column("durability", "durability"),
    number_column("rate", "rate", "/s"),
    Column("size", lambda row: bytes_in_words(row["capacity_bytes"]), lambda row: row["capacity_bytes"]),
    Column("used", lambda row: f"{row['used_ratio']:.0%}", lambda row: row["used_ratio"]),
    Column("unread", lambda row: f"{row['unread_ratio']:.0%}", lambda row: row["unread_ratio"]),
    number_column("next", "end_offset"),
    number_column("readers", "readers"),
    number_column("lag", "lag"),
    number_column("lost", "lost"),
)
BRIDGE_COLUMNS = (
    text_column("bridge", "bridge"),
    text_column("state", "condition"),
    number_column("rate", "rate", "/s"),
    number_column("lag", "lag"),
    number_column("lost", "lost"),
    text_column("to", "to"),
    text_column("error", "error"),
)
CONSUMER_COLUMNS = (text_column("consumer", "consumer"), number_column("lag", "lag"))
