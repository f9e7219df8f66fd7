"""A query of SQL that does not end by itself, and the processes of queries."""

import psutil

ENDLESS = "SELECT sum(sqrt(a.range * b.range)) FROM range(10_000_000) a, range(10_000_000) b"


def query_processes(console_pid: int) -> list[psutil.Process]:
    """Processes of `brim sql` that a console has started and that run."""
    found = []
    for child in psutil.Process(console_pid).children(recursive=True):
        try:
            if "sql" in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found
