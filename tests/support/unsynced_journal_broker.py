"""A broker with a mistake: it tells clients of their sessions before the journal of sessions is synced."""

import sys
from typing import Any

from edge.cli import main
from edge.recovery import state_files
from edge.session_store.journal_writer import JournalTarget


def hasty(ring: Any, writer: Any, files: Any, output_waits: bool, *bounds: Any) -> JournalTarget:
    """Journal whose output never waits."""
    del output_waits
    return JournalTarget(ring, writer, files, False, *bounds)


if __name__ == "__main__":
    vars(state_files)["JournalTarget"] = hasty
    sys.exit(main())
