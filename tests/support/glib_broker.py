"""A broker with a mistake: it tells clients of their sessions before the journal of sessions is synced."""

import sys
from typing import Any

from edge.cli import main
from edge.state import home
from edge.state.keeper import Place


def hasty(*place: Any, vows: bool) -> Place:
    """Nobody is to wait."""
    return Place(*place, vows=False)


if __name__ == "__main__":
    vars(home)["Place"] = hasty
    sys.exit(main())
