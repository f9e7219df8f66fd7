"""Log directory of a running broker, for programs that read its log without its configuration."""

from __future__ import annotations

from pathlib import Path

from edge.config.directories import StrPath
from edge.errors import AccessDenied, BrokerUnreachable, NoAnswer
from edge.local.protocol import Connection, Overview, Report


def log_directory_of(runtime_dir: StrPath | None) -> Path | None:
    """Directory of the logs of the broker of `runtime_dir`; None: no broker runs there.

    Raises NoAnswer: it runs and does not answer. AccessDenied: this user may not use it.
    """
    try:
        with Connection(runtime_dir) as connection:
            report = connection.request(Overview(), Report).report
    except NoAnswer:
        raise
    except AccessDenied:
        if runtime_dir is not None:
            raise
        return None  # a broker of another user, which was not named
    except BrokerUnreachable:
        return None
    return Path(report["log_dir"])
