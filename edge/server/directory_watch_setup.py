"""Directory watch of a broker: its directories, rings and logs, and the consequences of a missing file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from edge.config.schema import Config
from edge.observe.directory_watch import DirectoryWatch, Missing
from ringbuf.ring import ring_file

if TYPE_CHECKING:
    from edge.log.log_set import LogSet


def watch_directories(
    config: Config,
    rings: Iterable[Path],
    logs: LogSet | None,
    refuse_consumers: Callable[[str], object],
) -> DirectoryWatch:
    """Create the watch, not started. `refuse_consumers` is called with the reason, "" for none."""
    watch = DirectoryWatch(logs.logs if logs is not None else list)
    watch.watch("state_dir", config.state_dir)
    watch.watch("runtime_dir", config.runtime_dir)
    if (offsets := config.state_dir / "consumers").is_dir():
        watch.watch("state_dir", offsets)
    for path in rings:
        watch.watch("ring", ring_file(path))

    def follow() -> None:
        state = next((entry for entry in watch.missing if entry.key == "state_dir"), None)
        refuse_consumers(_reason(state) if state is not None else "")
        if logs is not None:
            directories = {log.directory for log in logs.logs()}
            logs.set_removed({log: _why(log, directories, watch.missing) for log in directories})

    watch.on_change.append(follow)
    return watch


def _why(directory: str, directories: set[str], missing: Iterable[Missing]) -> str:
    """Reason why the log in that directory accepts no records; "" if it does.

    Without the state directory a restart knows neither sessions nor epochs. So no log may promise durability
    then, wherever the log itself is.
    """
    of_log = (
        entry
        for entry in missing
        if entry.key == "log"
        # the directory of a log, or a file in it; logs of single rings lie in that of worker 0
        and directory == (entry.path if entry.path in directories else os.path.dirname(entry.path))
    )
    entry = next(of_log, None) or next((other for other in missing if other.key == "state_dir"), None)
    return _reason(entry) if entry is not None else ""


def _reason(missing: Missing) -> str:
    return f"{missing.path} was removed or replaced; {missing.remedy}"
