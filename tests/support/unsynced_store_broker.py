"""A broker with a mistake: it acknowledges delayed messages before their store has synced them."""

import sys

from edge.cli import main
from edge.delayed.store import DelayedStore

sync_commits = DelayedStore._sync_commits


def sync_nothing(self: DelayedStore, synced: bool) -> None:
    """Let commits return before they are synced."""
    del synced
    sync_commits(self, False)


if __name__ == "__main__":
    DelayedStore._sync_commits = sync_nothing  # type: ignore[method-assign]
    sys.exit(main())
