"""First look at drained files: the files as a Spark table, a query in SQL, and a plot of the result.

    pip install -e '.[spark]' matplotlib
    python -m examples.first_look /srv/lake --field temp

Written to be read from top to bottom, and pasted into a notebook. Needs Java 17 or newer.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from bridge.errors import BridgeError
from bridge.spark.jobs import gaps
from bridge.spark.session import session


def first_look(lake: str, field: str, plot: Path) -> None:
    """Print a summary of the records, and write the plot."""
    # Report missing records. This needs only names and footers of the files, not Spark.
    gaps.job(gaps.arguments().parse_args([lake]))

    # The landing zone of a bridge is a table. It needs no import or conversion.
    spark = session("first look")
    records = spark.read.format("brim").load(lake)
    records.printSchema()

    # Count records by edge and topic.
    records.createOrReplaceTempView("records")
    spark.sql("""
        SELECT stream, topic, count(*) AS records, sum(octet_length(payload)) AS bytes, max(timestamp) AS last
        FROM records GROUP BY stream, topic ORDER BY records DESC LIMIT 20
    """).show(truncate=False)

    # Payloads are JSON here: one number of each, by second. A payload schema does the same for all fields,
    # and faster: .option("payloads", "payloads.toml"), see bridge/payloads/schema.py.
    means = spark.sql(
        f"""
        SELECT topic, date_trunc('second', timestamp) AS second,
               avg(try_cast(get_json_object(cast(payload AS string), '$.{field}') AS double)) AS mean
        FROM records GROUP BY topic, second HAVING mean IS NOT NULL ORDER BY second
    """
    )
    lines = defaultdict(list)
    for row in means.collect():
        lines[row["topic"]].append((row["second"], row["mean"]))
    if not lines:
        sys.exit(f"no payload is JSON with a number in {field!r}: name another --field")
    draw(lines, field).savefig(plot, dpi=120)
    print(f"{plot}: {len(lines)} topics")


def draw(lines: dict[str, list[tuple[object, float]]], field: str) -> Figure:
    """Draw a line for each topic. In a notebook, a cell that ends with this call shows the plot."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    for topic, points in sorted(lines.items()):
        axes.plot(*zip(*points, strict=True), marker=".", label=topic)
    axes.set_ylabel(field)
    figure.legend(loc="outside upper center", ncols=4, fontsize="small")
    figure.autofmt_xdate()
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="a first look at drained files, with Spark")
    parser.add_argument("lake", help="where a bridge drains to: a path or URL")
    parser.add_argument("--field", default="value", help="of JSON payloads, to be drawn (%(default)s)")
    parser.add_argument("--to", type=Path, default=Path("first_look.png"), help="the plot (%(default)s)")
    options = parser.parse_args(arguments)
    try:
        first_look(options.lake, options.field, options.to)
    except BridgeError as error:
        sys.exit(f"{error}\n  {error.hint}")


if __name__ == "__main__":
    main()
