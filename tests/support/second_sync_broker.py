"""A broker with a mistake: when a sync fails it syncs again, and believes the second one."""

import sys

from edge.cli import main
from edge.log import log_set
from tests.support.called_disk import CalledFiles


class Files(CalledFiles):
    """Sync again after a failure, which skips the pages that the kernel has dropped."""

    def fdatasync(self, handle: int) -> None:
        """Twice, if need be."""
        try:
            super().fdatasync(handle)
        except OSError:
            super().fdatasync(handle)


if __name__ == "__main__":
    vars(log_set)["OsFiles"] = Files
    sys.exit(main())
