"""A broker whose store takes no delayed messages while the file that HOLD names exists, as on a full disk.

While the file that STALL names exists, the store does not answer, as on a disk that stalls.
"""

import os
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge.cli import main
from edge.delayed.store import DelayedMessage, DelayedStore

HOLD, STALL = Path(os.environ.get("HOLD", "")), Path(os.environ.get("STALL", ""))
apply = DelayedStore.apply


def refuse(self: DelayedStore, added: Sequence[DelayedMessage], *rest: Any, **options: Any) -> Any:
    """Fail, or do the same as the store."""
    if added and HOLD.is_file():
        raise sqlite3.OperationalError("database or disk is full")
    while added and STALL.is_file():
        time.sleep(0.01)
    return apply(self, added, *rest, **options)


if __name__ == "__main__":
    DelayedStore.apply = refuse  # type: ignore[method-assign]
    sys.exit(main())
