"""A broker with a mistake: it tells clients of their sessions before the journal of sessions is synced."""

import sys
from typing import Any

from edge.cli import main
from edge.state import home
from edge.state.keeper import Place


def hasty(ring: Any, writer: Any, files: Any, vows: bool, in_log_bytes: int) -> Place:
    """Nobody is to wait."""
    del vows
    return Place(ring, writer, files, in_log_bytes=in_log_bytes)


if __name__ == "__main__":
    vars(home)["Place"] = hasty
    sys.exit(main())
