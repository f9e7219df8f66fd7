"""A broker with a mistake: it believes that what it has written is on the disk."""

import sys

from edge.cli import main
from persistence import OsFiles

if __name__ == "__main__":
    OsFiles.fdatasync = lambda self, handle: None  # type: ignore[method-assign]
    sys.exit(main())
