"""A broker with a mistake: it creates every ring again, without the records that a killed broker has left."""

import sys
from pathlib import Path

from edge.cli import main
from edge.streams import ring_files
from ringbuf.ring import cursor_file, ring_file


def forget(path: Path, past: object) -> None:
    """Remove the ring, whatever the log `past` has of it."""
    del past
    ring_file(path).unlink(missing_ok=True)
    cursor_file(path).unlink(missing_ok=True)


if __name__ == "__main__":
    ring_files._left_behind = forget
    sys.exit(main())
