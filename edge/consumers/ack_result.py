"""Acknowledgement result: the accepted and the refused records of an acknowledgement. Immutable.

Invariant: `accepted` and `refused` count the named records, each in one of the two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edge.consumers.protocol import Acked, Answer, Failed
from ringbuf import Record

Offsets = Iterable["Record | int"]
Run = tuple[int, int]

TOO_LATE = "these records come again, another member has them or did them, or they are dead letters"
LOST = "the broker did not answer; the records may come again"


@dataclass(frozen=True, slots=True)
class AckResult:
    """The broker's answer to ack(), nack() or commit(). True if nothing was refused.

    `accepted`, `refused`: records. `refused_runs`: exactly the refused, (offset, count) each, ascending.
    `cause`: of the refusal, in words.
    """

    accepted: int
    refused: int
    refused_runs: tuple[Run, ...]
    cause: str
    _asked: Sequence[Record | int]

    def __bool__(self) -> bool:
        return not self.refused

    @property
    def accepted_runs(self) -> tuple[Run, ...]:
        """Exactly the accepted, (offset, count) each."""
        refused = set(_offsets_in(self.refused_runs, map(offset_of, self._asked)))
        return tuple(runs_of(offset for offset in map(offset_of, self._asked) if offset not in refused))


def result_of(answer: Answer | None, requested: Sequence[Record | int], *, named: bool = True) -> AckResult:
    """Result from an answer for the requested records; `named`: only these were requested.

    None: no answer came.
    """
    if isinstance(answer, Acked):
        refused, runs = answer.refused, answer.refused_runs
        if runs and named:  # ranges may include records that match no filter
            offsets = list(_offsets_in(runs, map(offset_of, requested)))
            refused, runs = len(offsets), tuple(runs_of(offsets))
        return AckResult(answer.accepted, refused, runs, TOO_LATE if refused else "", requested)
    cause = answer.error if isinstance(answer, Failed) else LOST
    return AckResult(0, len(requested), tuple(runs_of(requested)), cause, requested)


def runs_of(offsets: Offsets) -> list[Run]:
    """(offset, count) of each contiguous run, in their order."""
    runs: list[Run] = []
    for number in offsets:
        offset = offset_of(number)
        if runs and runs[-1][0] + runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((offset, 1))
    return runs


def _offsets_in(runs: Sequence[Run], offsets: Iterable[int]) -> Iterable[int]:
    """Those of the offsets that lie in the runs, which must be ascending."""
    for offset in offsets:
        index = bisect_right(runs, offset, key=lambda run: run[0]) - 1
        if index >= 0 and offset < sum(runs[index]):
            yield offset


def offset_of(record: Record | int) -> int:
    """The offset of a record, or the offset itself."""
    return record if isinstance(record, int) else record.offset
