"""A command of Brim in the control group $CONTROL_GROUP: `python -m tests.support.grouped_broker run`."""

import os
from pathlib import Path

if __name__ == "__main__":
    Path(os.environ["CONTROL_GROUP"], "cgroup.procs").write_text(str(os.getpid()))

    from edge.cli import main

    raise SystemExit(main())
