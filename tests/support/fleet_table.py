"""Bronze table of a fleet's lake: Spark's jobs make it as users run them, pyarrow reads it.

Owns the commands and the comparison of the table's rows with the publishers' ledger.  The comparison never
uses Spark or the code that wrote the table.
"""

import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge.cli import main
from tests.support.lake_ledger import table_at

IDENTITY = ["edge", "stream", "partition", "epoch", "offset"]
COMPLETE = 0  # exit status of `brim spark gaps` and `brim spark report`


@dataclass
class FleetTable:
    """A table at the directory `path`.  `root` is the lake as `brim spark` takes it."""

    root: str
    path: Path
    figures: Mapping[str, object] = field(default_factory=dict)  # of the last check()

    def ingest(self) -> None:
        """Add the files that are new in the lake."""
        status, said = spark_command("bronze", self.root, "--to", str(self.path), "--json")
        assert (status, json.loads(said)["quarantined"]) == (0, 0), said

    def check(self, acknowledged: Sequence[str], copied: Sequence[str] = ()) -> None:
        """Assert that the table has each acknowledged payload once, and that all verdicts are `complete`.

        `copied`: payloads that are there once more, under another edge id.
        """
        self.ingest()
        rows = table_at(self.path)
        expected = Counter(acknowledged) + Counter(copied)
        there = Counter(payload.decode() for payload in rows["payload"].to_pylist())
        missing, doubled = expected - there, there - expected
        twice = len(rows) - len(rows.group_by(IDENTITY).aggregate([]))
        status, found = self._gaps()
        self.figures = {
            "acknowledged": len(acknowledged),
            "in table": len(rows),
            "lost": missing.total(),
            "doubles": doubled.total() + twice,
            "copied": len(copied),
            "declared lost": found["lost"],
            "verdict": found["verdict"],
        }
        assert not missing, (self.figures, missing)
        assert not doubled, (self.figures, doubled)
        assert twice == 0, self.figures
        assert (status, found["verdict"]) == (COMPLETE, "complete"), found
        assert (found["records"], found["lost"], found["missing"]) == (len(rows), 0, 0), found
        for row in found["table"]:
            assert (row["missing"], row["doubled"], row["unknown"], row["quarantined"]) == ([], 0, [], 0), row
        self._check_report()

    def _gaps(self) -> tuple[int, dict[str, Any]]:
        status, said = spark_command("gaps", self.root, "--table", str(self.path), "--json")
        found: dict[str, Any] = json.loads(said)
        return status, found

    def _check_report(self) -> None:
        page = self.path.with_suffix(".html")
        table = ["--table", str(self.path), "--to", str(page), "--json"]
        status, said = spark_command("report", self.root, *table)
        assert (status, json.loads(said)["verdict"]) == (COMPLETE, "complete"), said
        assert 'data-verdict="complete">complete' in page.read_text(encoding="utf-8")


def spark_command(*words: str) -> tuple[int, str]:
    """Exit status and last line of `brim spark`, run in this process."""
    with redirect_stdout(io.StringIO()) as out:
        status = main(["spark", *words])
    return status, out.getvalue().rstrip().rpartition("\n")[2]
