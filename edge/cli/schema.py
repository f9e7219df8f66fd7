"""Infer a payload schema, which makes the fields of payloads columns of files, of Spark and of `brim sql`.

    brim schema infer -o payloads.toml                    from records of the broker of this machine
    brim schema infer -t 'plant/+/data' --since -1h       only these topics, one entry for each filter
    brim schema infer --log /var/lib/brim/log             from a log; no broker needs to run
    brim schema infer /srv/lake                           from the drained files of a bridge
    mosquitto_sub -t '#' -C 1000 -F %p | brim schema infer -

Standard input has one payload on each line: JSON, or an object with topic and payload, as `brim sub --json`
prints it. The schema is TOML. Its comments, and --json, have the share of the sample in which each field is
present, and the share that fits its type. The broker may run: nothing is locked or changed.

Exit status: 0 done, 1 done, but topics of the sample have no entry, 2 nothing could be inferred. Needs the
extras `payloads` and, for a broker or log, `sql`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edge.cli.argument_types import at_least_one
from edge.cli.exit_status import Exit
from edge.cli.humanize import bytes_in_words, count_in_words, counted
from edge.cli.log_options import accept_negative_places, add_log_arguments, log_directory
from edge.cli.mqtt_options import UsageError
from edge.errors import EdgeError
from edge.terminal_escape import escaped
from ringbuf.extras import install_extra

if TYPE_CHECKING:
    from bridge.payloads.infer import Inference
    from bridge.payloads.samples import Sample

SAMPLE = 10_000
SAMPLE_MAX = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim schema`."""
    verbs = parser.add_subparsers(dest="verb", metavar="infer", required=True)
    infer = verbs.add_parser("infer", help="write the payload schema of a sample of records")
    accept_negative_places(infer)
    infer.add_argument(
        "source", nargs="?", metavar="SOURCE",
        help="directory of drained files; -: standard input (default: rings and log of the broker)",
    )  # fmt: skip
    infer.add_argument(
        "-t", "--topic", action="append", default=[], metavar="FILTER",
        help="topic filter of an entry; may be repeated (default: filters that are found)",
    )  # fmt: skip
    infer.add_argument("--since", metavar="TIME", help="records from this time on, such as -15m")
    infer.add_argument("--until", metavar="TIME", help="records before this time")
    infer.add_argument(
        "--stream", action="append", default=[], metavar="NAME", help="only this stream; may be repeated"
    )
    infer.add_argument(
        "-n", "--sample", type=at_least_one, default=SAMPLE, metavar="N",
        help=f"number of records (default: {SAMPLE:,}, at most {SAMPLE_MAX:,})",
    )  # fmt: skip
    infer.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="new file of the schema (default: standard output)"
    )
    infer.add_argument("--json", action="store_true", help="print the fields and their shares as one object")
    add_log_arguments(infer)


def run(arguments: argparse.Namespace) -> int:
    """Run `brim schema` and return its exit status."""
    for library in ("pyarrow", "msgpack"):
        if importlib.util.find_spec(library) is None:
            raise EdgeError(f"{library} is not installed", hint=install_extra("payloads"))
    from bridge.payloads.infer import infer

    sample = _sample(arguments)
    if not sample.topics:
        raise EdgeError("the sample has no records", hint="name another source, or a longer time")
    inference = infer(sample.topics, sample.payloads, arguments.topic)
    if not inference.entries:
        raise EdgeError(
            f"no fields in {count_in_words(len(sample.topics))} payloads",
            hint="payloads must be maps in JSON, msgpack, CBOR or Sparkplug B, or text",
        )
    _write(inference, arguments)
    _report_left_out(sample, inference)
    return Exit.INCOMPLETE if inference.unknown else Exit.OK


def _report_left_out(sample: Sample, inference: Inference) -> None:
    from bridge.payloads.infer import ENTRIES_MAX
    from bridge.payloads.samples import PAYLOAD_MAX_BYTES, SAMPLE_MAX_BYTES

    for topic, records in inference.unknown.items():
        text = f"no entry for {topic}: {counted(records, 'record')}"
        print(f"brim schema: {escaped(text)}", file=sys.stderr)
    if inference.unknown:
        text = f"entries need a known format, and are at most {ENTRIES_MAX}; select topics with --topic"
        print(f"brim schema: {text}", file=sys.stderr)
    if sample.too_long:
        count = count_in_words(sample.too_long)
        one, together = bytes_in_words(PAYLOAD_MAX_BYTES), bytes_in_words(SAMPLE_MAX_BYTES)
        text = (
            f"payloads left out: {count} (allowed: {one} each, {together} in the sample); "
            "lower --sample if the sample is too large"
        )
        print(f"brim schema: {text}", file=sys.stderr)
    if sample.unreadable:
        count = count_in_words(len(sample.unreadable))
        text = f"unreadable files left out: {count}; the first: {sample.unreadable[0]}"
        print(f"brim schema: {escaped(text)}", file=sys.stderr)


def _sample(arguments: argparse.Namespace) -> Sample:
    from bridge.payloads import samples

    count = arguments.sample
    if count > SAMPLE_MAX:
        raise UsageError(
            f"invalid --sample {count} (allowed: 1 to {SAMPLE_MAX:,})", hint="write a lower number"
        )
    if arguments.source is None:
        return _of_broker(arguments, count)
    if arguments.since or arguments.until or arguments.stream:
        raise UsageError("--since, --until and --stream are for a broker or a log", hint="leave them out")
    if arguments.source == "-":
        return samples.of_lines(sys.stdin.buffer, count)
    return samples.of_drained_files(Path(arguments.source), count)


def _of_broker(arguments: argparse.Namespace, count: int) -> Sample:
    """Records of rings, log and archive."""
    if importlib.util.find_spec("duckdb") is None:
        raise EdgeError("duckdb is not installed", hint=install_extra("sql"))
    from bridge.payloads.samples import PAYLOAD_MAX_BYTES, Sample
    from edge.sql.records import RecordRelation

    records = RecordRelation(
        arguments.topic,
        since=arguments.since,
        until=arguments.until,
        streams=arguments.stream,
        log=log_directory(arguments),
        runtime_dir=arguments.runtime_dir,
        config=arguments.config,
    )
    whole = f"CASE WHEN octet_length(payload) <= {PAYLOAD_MAX_BYTES} THEN payload END"
    rows = f"SELECT topic, {whole} FROM records"  # noqa: S608 - no user's text
    query = f"{rows} USING SAMPLE reservoir({count} ROWS) REPEATABLE (1)"
    sample = Sample()
    with records.sql(query) as found:
        for batch in found.batches(1024):
            for topic, payload in zip(*(batch.column(at).to_pylist() for at in (0, 1)), strict=True):
                sample.add(topic, payload)
    return sample


def _write(inference: Inference, arguments: argparse.Namespace) -> None:
    if arguments.output is not None:
        try:
            with open(arguments.output, "x", encoding="utf-8", opener=_create) as file:
                file.write(inference.text)
        except FileExistsError as error:
            raise UsageError(f"{arguments.output} exists", hint="name another file, or remove it") from error
        except OSError as error:
            raise UsageError(f"{arguments.output}: {error.strerror}", hint="name another file") from error
    if arguments.json:
        print(json.dumps(inference.as_dict(), indent=2))
    elif arguments.output is None:
        print(inference.text, end="")


def _create(path: str, flags: int) -> int:
    return os.open(path, flags, 0o644)
