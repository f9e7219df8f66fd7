"""Options of format("brim"), read once; every mistake is named.

    path                 root of the landing zone: the argument of .load()
    edge, stream         names separated by commas, * for anything; default: all.  A name that no file has is
                         an error.  A stream reports it on stderr, and waits for it
    startingOffsets      "earliest" (default), "latest" (streams only), or JSON {edge: drain_seq}: the files
                         of that edge up to there are passed over.  A stream uses it only at its first start
    endingOffsets        batch only: "latest" (default) or JSON {edge: drain_seq}: the last file to read
    mode                 FAILFAST (default): a record that does not verify fails the query; PERMISSIVE: it
                         becomes a row with _corrupt_record; DROPMALFORMED: it is left out
    failOnDataLoss       true (default): a missing drain_seq fails the query; false: it is passed over
    maxFilesPerTrigger, maxBytesPerTrigger    size of one micro-batch; default 1 GiB
    minPartitions        at least as many tasks, if there are as many files
    taskBytes            files are packed into tasks of about so many bytes; default: an eighth of all, but
                         32 to 128 MiB.  Smaller tasks use more cores at once, larger ones cost less
    missingGraceSeconds  a stream waits at a missing drain_seq while the file behind it is younger; 600
    partition            numbers separated by commas; default: all
    offsets              FIRST-LAST, both included, FIRST- or -LAST: of each partition and epoch
    since, until         ISO dates or times, UTC without a time zone: since <= timestamp < until
    topic                topic filters separated by commas, as in MQTT: plant/+/temp, plant/#
                         A checkpoint has the stream, partition, offsets, since, until and topic of its query.
                         Another value is refused, because earlier records would be missing.  An option may be
                         added, and since may be later
    pushDown             false (default); true: Spark's own conditions exclude files and records, too
                         (batch only; needs spark.sql.python.filterPushdown.enabled, which session.py sets)
    payloads             file on the driver with a payload schema (bridge/payloads/schema.py), whose fields
                         become columns
    parquet              read (default), or skip: batch queries leave whole Parquet files out, which
                         brim.lake() gives to Spark's own reader
    view                 records (default), or files: one row for each file, from names and footers

Sizes are bytes, or a number with k, m or g. Upper and lower case in names of options are equal, as in Spark.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bridge.errors import SourceOptionError
from bridge.payloads.schema import Payloads
from bridge.spark.conditions import Condition, Where, moment

KNOWN = (
    "path", "edge", "stream", "startingOffsets", "endingOffsets", "mode", "failOnDataLoss",
    "maxFilesPerTrigger", "maxBytesPerTrigger", "minPartitions", "taskBytes", "missingGraceSeconds",
    "view", "payloads", "partition", "offsets", "since", "until", "topic", "pushDown",
    "parquet",
)  # fmt: skip
OF_TABLES = ("location", "owner", "provider")  # Spark adds these to the options in CREATE TABLE
SQL_VIEW = "CREATE TEMPORARY VIEW name USING brim OPTIONS (path '/srv/lake')"
MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
WHERE = ("partition", "offsets", "since", "until", "topic")
CHOOSING = ("stream", *WHERE)  # options that leave out records, which the progress of a stream passes over
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The checked options."""

    path: str
    edges: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    starting: Literal["earliest", "latest"] | dict[str, int] = "earliest"
    ending: dict[str, int] = field(default_factory=dict)
    mode: str = "FAILFAST"
    fail_on_data_loss: bool = True
    max_files: int | None = None
    max_bytes: int = 1 << 30
    min_partitions: int = 1
    task_bytes: int | None = None
    missing_grace_s: int = 600
    view: str = "records"
    payloads: Payloads | None = None
    where: Where = field(default_factory=Where)
    push_down: bool = False
    parquet: str = "read"
    chosen: dict[str, str] = field(default_factory=dict)  # the options of CHOOSING that are set

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SourceOptions:
        """Read the options. Raises SourceOptionError for the first mistake."""
        lower = {key.lower(): value for key, value in options.items()}
        _refuse_unknown(lower)

        def text(name: str, default: str) -> str:
            return lower.get(name.lower(), default).strip()

        def names(name: str) -> tuple[str, ...]:
            return tuple(part.strip() for part in text(name, "").split(",") if part.strip())

        if not text("path", ""):
            raise SourceOptionError("path is not set", hint=f'write .load("/srv/lake"), or in SQL {SQL_VIEW}')
        max_files, task_bytes = text("maxFilesPerTrigger", ""), text("taskBytes", "")
        return cls(
            path=text("path", ""),
            edges=names("edge"),
            streams=names("stream"),
            starting=_offsets("startingOffsets", text("startingOffsets", "earliest"), ("earliest", "latest")),
            ending=_limits(text("endingOffsets", "latest")),
            mode=_one_of("mode", text("mode", "FAILFAST").upper(), MODES),
            fail_on_data_loss=_yes_or_no("failOnDataLoss", text("failOnDataLoss", "true")),
            max_files=_size("maxFilesPerTrigger", max_files) if max_files else None,
            max_bytes=_size("maxBytesPerTrigger", text("maxBytesPerTrigger", "1g")),
            min_partitions=_size("minPartitions", text("minPartitions", "1")),
            task_bytes=_size("taskBytes", task_bytes) if task_bytes else None,
            missing_grace_s=_size("missingGraceSeconds", text("missingGraceSeconds", "600"), least=0),
            view=_one_of("view", text("view", "records"), ("records", "files")),
            where=_where({name: text(name, "") for name in WHERE}),
            push_down=_yes_or_no("pushDown", text("pushDown", "false")),
            parquet=_one_of("parquet", text("parquet", "read"), ("read", "skip")),
            payloads=Payloads.read(text("payloads", "")) if text("payloads", "") else None,
            chosen={name: value for name in CHOOSING if (value := text(name, ""))},
        )

    def check_chosen(self, before: Mapping[str, str]) -> None:
        """Refuse a checkpoint of a query that had other options of CHOOSING, as `before`.

        Its progress has passed over the records that they left out. An option may be added, and `since` may
        be later: then none of these records is wanted. Raises SourceOptionError.
        """
        for name, value in before.items():
            now = self.chosen.get(name, "")
            if now == value or (name == "since" and now and moment(now) >= moment(value)):
                continue
            raise SourceOptionError(
                f"the checkpoint of this query was written with {name}={value}, and it has "
                f"{f'{name}={now}' if now else f'no {name}'} now: earlier records would be left out",
                hint=f"give {name}={value} again; for other records use a new checkpoint and another table",
            )


def _refuse_unknown(lower: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in KNOWN}
    for key in lower:
        if key in OF_TABLES:
            # Spark stores the path as location of a table, and does not give it back to a Python source.
            raise SourceOptionError("CREATE TABLE ... USING brim is not possible", hint=f"write {SQL_VIEW}")
        if key not in known and not key.startswith(("__", "spark.")):
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(KNOWN)}"
            raise SourceOptionError(f"no option {key!r}", hint=hint)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise SourceOptionError(f"{name} is {value!r}, and must be one of {', '.join(allowed)}")
    return value


def _yes_or_no(name: str, value: str) -> bool:
    return _one_of(name, value.lower(), ("true", "false")) == "true"


def _where(options: Mapping[str, str]) -> Where:
    """The conditions of the options that are not empty. Raises SourceOptionError."""
    where = Where()
    if options["partition"]:
        try:
            numbers = tuple(int(number) for number in options["partition"].split(","))
        except ValueError:
            raise SourceOptionError(f"partition is {options['partition']!r}, and must be numbers") from None
        where = where.and_also(Condition("partition", "in", numbers))
    if options["offsets"]:
        match = re.fullmatch(r"(\d{0,20})-(\d{0,20})", options["offsets"])
        if match is None or options["offsets"] == "-":
            raise SourceOptionError(
                f"offsets is {options['offsets']!r}, and must be FIRST-LAST, FIRST- or -LAST"
            )
        ends = ((match[1], ">="), (match[2], "<="))
        where = where.and_also(*(Condition("offset", how, int(end)) for end, how in ends if end))
    for name, how in (("since", ">="), ("until", "<")):
        if options[name]:
            try:
                where = where.and_also(Condition("timestamp", how, moment(options[name])))
            except ValueError:
                raise SourceOptionError(
                    f"{name} is {options[name]!r}, and must be a date or time as 2026-01-31T12:00"
                ) from None
    if options["topic"]:
        where = where.and_also(Condition.of_topics(*(part.strip() for part in options["topic"].split(","))))
    return where


def _size(name: str, value: str, least: int = 1) -> int:
    match = re.fullmatch(r"(\d{1,18})([kmg]?)b?", value.lower())
    if match is None or int(match[1]) * UNITS[match[2]] < least:
        raise SourceOptionError(
            f"{name} is {value!r}, and must be a number from {least} on, perhaps with k, m or g"
        )
    return int(match[1]) * UNITS[match[2]]


def _offsets(name: str, value: str, words: tuple[str, ...]) -> Literal["earliest", "latest"] | dict[str, int]:
    if value == "earliest" and "earliest" in words:
        return "earliest"
    if value == "latest" and "latest" in words:
        return "latest"
    try:
        value_read = json.loads(value)
    except ValueError:
        value_read = None
    if not isinstance(value_read, dict) or not all(
        type(seq) is int and seq >= 0 for seq in value_read.values()
    ):
        raise SourceOptionError(
            f"{name} is {value!r}, and must be {', '.join(words)} or JSON {{edge: drain_seq}}"
        )
    return value_read


def _limits(value: str) -> dict[str, int]:
    offsets = _offsets("endingOffsets", value, ("latest",))
    return offsets if isinstance(offsets, dict) else {}
