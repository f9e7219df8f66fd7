"""Ledger: all counts side by side, and the verdict.

The verdict: every stage has the acknowledged messages, and each record once. Pure: numbers in, numbers and
sentences out. Two different things are counted:

    record     (ring, epoch, offset): a record that the broker has stored.  Every stage must have each of them
               exactly once, so all stages count the same.
    message    (device, n): a message that a device has published.  MQTT with QoS 1 delivers at least once.  A
               message whose acknowledgement was lost with the broker is sent again, and may then be two
               records.  That is not a fault, and is shown separately, as `again`.

lost        messages that were acknowledged and are missing in a stage
twice       records that a stage saw more than once
gaps        offsets that a stage never saw, although it saw later ones, or that were declared lost
foreign     messages that no device has published
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from examples.demo.journal import JournalFile
from examples.demo.tally import Tally

SHOWN = 3  # examples of missing messages, in a sentence


@dataclass(frozen=True)
class Stage:
    """Counts of one stage."""

    name: str
    records: int  # different ones
    twice: int
    gaps: int
    tally: Tally  # of messages: every record counted
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One line of the ledger; None where a number has no meaning."""

    name: str
    messages: int
    records: int | None = None
    again: int | None = None
    lost: int | None = None
    twice: int | None = None
    gaps: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Ledger:
    """Result of a run. `problems`: the reasons for a mismatch, as sentences; empty: the ledger matches."""

    rows: list[Row]
    problems: list[str] = field(default_factory=list)

    @property
    def matches(self) -> bool:
        """True if the ledger matches."""
        return not self.problems

    @property
    def lost(self) -> int:
        """Lost messages of the worst stage."""
        return max(row.lost or 0 for row in self.rows)

    @property
    def twice(self) -> int:
        """Records seen twice by the worst stage."""
        return max(row.twice or 0 for row in self.rows)


def build(journals: Sequence[JournalFile], stages: Sequence[Stage]) -> Ledger:
    """The ledger of publishers and stages; stages are in the order of the data flow."""
    published, acked = Tally(), Tally()
    for journal in journals:
        for device, count in journal.counts.items():
            published.expect(device, count)
        acked.merge(journal.acked)
    by_client = ", ".join(f"{journal.name} {sum(journal.counts.values()):,}" for journal in journals)
    rows = [Row("published", published.count(), note=by_client), Row("acknowledged", acked.count())]
    rows += [_row(stage, acked) for stage in stages]
    problems = [*_unfinished(published, acked), *_differing(stages)]
    for stage in stages:
        problems += _problems(stage, published, acked)
    return Ledger(rows, problems)


def _row(stage: Stage, acked: Tally) -> Row:
    messages = stage.tally.count()
    return Row(
        stage.name,
        messages,
        records=stage.records,
        again=stage.records - messages,
        lost=_count(stage.tally.missing(acked)),
        twice=stage.twice,
        gaps=stage.gaps,
        note=stage.note,
    )


def _unfinished(published: Tally, acked: Tally) -> list[str]:
    if published.count() == 0:
        return ["nothing was published"]
    open_ = list(acked.missing(published))
    strange = list(published.missing(acked))
    problems = [f"{len(open_):,} messages were never acknowledged: {_examples(open_)}"] if open_ else []
    if strange:
        problems.append(f"{len(strange):,} acknowledgements of what nobody published: {_examples(strange)}")
    return problems


def _differing(stages: Sequence[Stage]) -> list[str]:
    counts = {stage.records for stage in stages}
    if len(counts) < 2:
        return []
    return [
        "the stages hold different records: "
        + ", ".join(f"{stage.name} {stage.records:,}" for stage in stages)
    ]


def _problems(stage: Stage, published: Tally, acked: Tally) -> list[str]:
    lost = list(stage.tally.missing(acked))
    foreign = list(published.missing(stage.tally))
    problems = []
    if lost:
        problems.append(f"{stage.name}: {len(lost):,} acknowledged messages are missing: {_examples(lost)}")
    if stage.twice:
        problems.append(f"{stage.name}: {stage.twice:,} records are there more than once")
    if stage.gaps:
        problems.append(f"{stage.name}: {stage.gaps:,} offsets are missing")
    if foreign:
        problems.append(
            f"{stage.name}: {len(foreign):,} messages that nobody published: {_examples(foreign)}"
        )
    return problems


def _examples(messages: Sequence[tuple[str, int]]) -> str:
    shown = ", ".join(f"{device} {n}" for device, n in islice(messages, SHOWN))
    return shown + (", ..." if len(messages) > SHOWN else "")


def _count(messages: Iterable[object]) -> int:
    return sum(1 for _ in messages)
