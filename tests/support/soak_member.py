"""A member of a consumer group, as a process that joins and leaves again and again, with a ledger.

    python -m tests.support.soak_member RUNTIME_DIR LEDGER FILTER SEED [received]

A line of the ledger has the numbers of one batch, written after the broker has answered that they are done:
those that it accepted, not those that it refused because they came too late.  `received`: written before the
acknowledgement, for members that are killed.
SIGTERM ends it, after the batch that it has.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from random import Random

from brim import Consumer, consumer
from edge.errors import BrokerUnreachable
from tests.support.outside_client import number_of

STAY_S = (3.0, 12.0)
AWAY_S = (0.0, 1.0)


class Member:
    """Until `over`."""

    def __init__(
        self, runtime_dir: Path, ledger: str, topic_filter: str, seed: int, *, received: bool
    ) -> None:
        self.over = False
        self._runtime_dir, self._filter, self._received = runtime_dir, topic_filter, received
        self._file = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._random = Random(seed)
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self.over = True

    def run(self) -> None:
        """Join, work, leave, again and again."""
        while not self.over:
            with (
                suppress(BrokerUnreachable),
                consumer(
                    "soak", self._filter, start="oldest", session_s=5.0, runtime_dir=self._runtime_dir
                ) as records,
            ):
                self._work(records, time.monotonic() + self._random.uniform(*STAY_S))
            time.sleep(self._random.uniform(*AWAY_S))
        os.close(self._file)

    def _work(self, records: Consumer, until_s: float) -> None:
        while not self.over and time.monotonic() < until_s:
            batch = records.read(0.2)
            if batch is None:
                continue
            numbers = {it.offset: number_of(bytes(it)) for it in batch}
            if self._received:
                self._note(numbers.values())
            runs = records.ack(batch).accepted_runs
            if not self._received:
                self._note(numbers[first + index] for first, count in runs for index in range(count))

    def _note(self, numbers: Iterable[int]) -> None:
        if line := ",".join(map(str, numbers)):
            os.write(self._file, f"{line}\n".encode())


def main() -> None:
    """The process."""
    Member(
        Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), received="received" in sys.argv
    ).run()


if __name__ == "__main__":
    main()
