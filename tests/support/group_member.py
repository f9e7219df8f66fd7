"""A member of a group as a process, which writes down what it does, in a file that outlives it.

Each line of the ledger is one write, so a kill leaves whole lines:

    P NS RING OFFSET COUNT      got these records, at that time
    N NS NUMBER,NUMBER,...      their payloads
    A NS RING OFFSET COUNT      the broker has answered that they are done
"""

import os
import sys
import time
from pathlib import Path

from brim import consumer
from edge.errors import BrokerUnreachable


def main() -> None:
    """Until it is killed."""
    runtime_dir, ledger, mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    file = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, place: str, rest: str = "") -> None:
        os.write(file, f"{what} {time.monotonic_ns()} {place} {rest}\n".encode())

    while True:
        try:
            with consumer(
                "campaign",
                "a/#",
                mode="queue" if mode == "queue" else "ordered",
                start="oldest",
                session_s=1.0,
                batch_bytes=64 << 10,
                runtime_dir=runtime_dir,
            ) as records:
                print("in", flush=True)
                for batch in records:
                    numbers = ",".join([bytes(it).decode() for it in batch])
                    offsets = [it.offset for it in batch]
                    for first, count in runs(offsets):
                        note("P", f"{batch.ring} {first} {count}")
                    note("N", numbers)
                    if records.ack(batch).accepted == len(offsets):
                        for first, count in runs(offsets):
                            note("A", f"{batch.ring} {first} {count}")
        except BrokerUnreachable:
            continue


def runs(offsets: list[int]) -> list[tuple[int, int]]:
    """(first, count) of what is contiguous."""
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and sum(found[-1]) == offset:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((offset, 1))
    return found


if __name__ == "__main__":
    main()
