"""A broker with a mistake: it believes that what it has written is on the disk."""

import sys

from edge.cli import main
from edge.log import log_set
from tests.support.called_disk import CalledFiles


class Files(CalledFiles):
    """Never syncs a file."""

    def fdatasync(self, handle: int) -> None:
        """Not done."""


if __name__ == "__main__":
    vars(log_set)["OsFiles"] = Files
    sys.exit(main())
