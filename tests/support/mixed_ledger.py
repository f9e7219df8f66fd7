"""Ledger of a history: what was acknowledged, what was found at the end, and each difference."""

from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds

from tests.support.drained_files import offsets_drained, payloads_drained
from tests.support.outside_client import number_of

Numbers = dict[str, set[int]]  # of messages, by topic
IDENTITY = ("stream", "partition", "ring", "epoch", "offset")  # of a record; a lake has no rings


class MixedLedger:
    """Counts and differences of one history.  `wrong`: one line for each promise that was broken."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def compare(self, wanted: Numbers, found: Numbers, where: str) -> None:
        """Report topics of which acknowledged messages are not among those found."""
        for topic, numbers in wanted.items():
            if missing := sorted(numbers - found.get(topic, set())):
                text = f"{len(missing)} of {len(numbers)} acknowledged did not reach {where}"
                self.wrong.append(f"{topic}: {text}: {missing[0]} to {missing[-1]}")

    def compare_rows(self, files: Path, wanted: Numbers, where: str) -> None:
        """Read Parquet files, which must have the wanted messages and no record of their topics twice."""
        of_topics = ds.field("topic").isin(list(wanted))
        paths = [str(path) for path in sorted(files.rglob("*.parquet"))] if files.is_dir() else [str(files)]
        rows = ds.dataset(paths).to_table(filter=of_topics).to_pylist() if paths else []
        found: Numbers = {}
        for row in rows:
            found.setdefault(row["topic"], set()).add(number_of(row["payload"]))
        self.compare(wanted, found, where)
        self.counts[f"rows in {where.rsplit(maxsplit=1)[-1]}"] += len(rows)
        if twice := len(rows) - len({tuple(map(row.get, IDENTITY)) for row in rows}):
            self.wrong.append(f"{twice} records are twice in {where}")

    def compare_drained(self, directory: Path, wanted: Numbers) -> None:
        """Read drained files, which must have the wanted messages and no offset twice."""
        for key, offsets in offsets_drained(directory).items():
            if len(offsets) != len(set(offsets)):
                self.wrong.append(f"{key}: offsets are twice in the drained files")
        missing = times(wanted) - Counter(map(number_of, payloads_drained(directory)))
        self._report(missing, "the drained files")

    def compare_group(self, ledgers: list[Path], wanted: Numbers) -> None:
        """Compare with the ledgers of the members of a consumer group."""
        self._report(lacking(ledgers, wanted), "the group")

    def _report(self, missing: Counter[int], where: str) -> None:
        if missing:
            self.wrong.append(f"{missing.total()} records did not reach {where}: number {min(missing)} first")

    def read_log(self, log: str) -> None:
        """Report errors that a broker logged."""
        lines = log.splitlines()
        errors = [it for it in lines if " ERROR " in it or " CRITICAL " in it or it.startswith("Traceback")]
        self.wrong += [f"the broker logged: {it[:300]}" for it in errors[:5]]


def times(numbers: Numbers) -> Counter[int]:
    """Return the number of topics with a message of each number."""
    return Counter(number for its in numbers.values() for number in its)


def lacking(ledgers: list[Path], wanted: Numbers) -> Counter[int]:
    """Numbers that the members of a group have not received as often as topics have them."""
    found = Counter[int]()
    for ledger in ledgers:
        text = ledger.read_text() if ledger.exists() else ""
        found.update(map(int, text.replace("\n", ",").split(",")[:-1]))
    return times(wanted) - found
