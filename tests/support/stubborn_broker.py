"""A broker with a mistake: when a sync fails it syncs again, and believes the second one."""

import sys

from edge.cli import main
from persistence import OsFiles

if __name__ == "__main__":
    sync = OsFiles.fdatasync

    def again(self: OsFiles, handle: int) -> None:
        """What the kernel has dropped by then is passed over."""
        try:
            sync(self, handle)
        except OSError:
            sync(self, handle)

    OsFiles.fdatasync = again  # type: ignore[method-assign]
    sys.exit(main())
