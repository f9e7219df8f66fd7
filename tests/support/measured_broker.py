"""`brim` that writes the memory that it uses, in KiB, to the file $MEASURED.

Memory in use is the blocks of malloc() and of Python that were not freed, without the queues of messages,
whose bytes the broker counts and limits. The resident memory is larger: it keeps what a busy moment needed.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge.broker.counters import Counters
from edge.broker.dispatcher import Broker
from edge.cli import main
from tests.support.malloc import allocated_bytes

BLOCK_BYTES = 64  # mean length of a block of Python's own allocator
STEP_S = 0.2


def measure(broker: Broker) -> None:
    """Write the memory in use, for ever."""
    path, counters = Path(os.environ["MEASURED"]), Counters(broker.engine)
    new = path.with_suffix(".next")
    while True:
        used = allocated_bytes() + BLOCK_BYTES * sys.getallocatedblocks()
        new.write_text(str((used - counters.gauges()["queues_bytes"]) >> 10))
        new.replace(path)
        time.sleep(STEP_S)


def measured(begin: Callable[..., None]) -> Callable[..., None]:
    """Broker.__init__() that also begins to measure."""

    def begun(self: Broker, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        threading.Thread(target=measure, args=(self,), daemon=True).start()

    return begun


if __name__ == "__main__":
    Broker.__init__ = measured(Broker.__init__)  # type: ignore[method-assign]
    sys.exit(main())
