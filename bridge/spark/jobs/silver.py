"""Silver: drained files into a table of typed columns, with payloads decoded by a payload schema.

    python -m bridge.spark.jobs.silver /srv/lake --to /srv/silver --payloads payloads.toml
    spark-submit .../silver.py s3://bucket/lake --to s3a://bucket/silver --payloads payloads.toml
        --format delta --every 60

Each record exactly once, as in bronze.py: the same directories of batches, checkpoint and quarantine. The
columns are those of a record without properties and payload, those of the schema
(bridge/payloads/schema.py: JSON, msgpack, CBOR, Sparkplug B, text), and _undecoded.

A value that does not fit its column goes to _undecoded, with the name of the column and the reason. The
record stays in the table with its other fields.

A payload that does not decode at all, or whose topic no entry of the schema matches, goes to
TABLE.state/quarantine with its identity, time, topic, the payload (_raw) and the reason (_corrupt_record).
After the schema is corrected, replay.py reads the range again.
"""

from __future__ import annotations

import argparse
import sys

from bridge.spark.jobs import bronze
from bridge.spark.jobs.common import add_stream_arguments, command


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="brim spark silver",
        description="Drained files into a table of typed columns, each record exactly once.",
    )
    parser.add_argument("root", help="root of the drained files: path or URL")
    parser.add_argument("--payloads", required=True, metavar="FILE", help="payload schema, on the driver")
    add_stream_arguments(parser)
    return parser


def job(arguments: argparse.Namespace) -> int:
    """Run the job, and return its exit status."""
    return bronze.ingest_as("brim silver", arguments, payloads=arguments.payloads)


main = command(arguments, job)

if __name__ == "__main__":
    sys.exit(main(None))
