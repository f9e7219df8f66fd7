"""A broker with a mistake: it tells clients of their sessions before the journal of sessions is synced."""

import sys
from typing import Any

from edge.cli import main
from edge.state import home
from edge.state.keeper import Place


def hasty(ring: Any, writer: Any, files: Any, vows: bool, *bounds: Any) -> Place:
    """Nobody is to wait."""
    del vows
    return Place(ring, writer, files, False, *bounds)


if __name__ == "__main__":
    vars(home)["Place"] = hasty
    sys.exit(main())
