"""Status report of a running broker, as `brim status --json` prints it."""

from pathlib import Path
from typing import Any

from edge.local.protocol import Connection, Report, Status


def report_of(runtime_dir: Path) -> dict[str, Any]:
    """The whole report."""
    with Connection(runtime_dir) as connection:
        return connection.request(Status(), Report).report
