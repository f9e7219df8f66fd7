"""A broker with a mistake: it believes that what it has written is on the disk."""

import sys

from edge import log_set
from edge.cli import main
from tests.support.called_disk import CalledFiles


class Files(CalledFiles):
    """Never syncs a file."""

    def fdatasync(self, handle: int) -> None:
        """Not done."""


if __name__ == "__main__":
    vars(log_set)["OsFiles"] = Files
    sys.exit(main())
