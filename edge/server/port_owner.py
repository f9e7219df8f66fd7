"""Owner of a TCP port, from /proc: names the program for "address in use", and identifies a broker by its
open files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp


def port_owner(port: int) -> str:
    """`mosquitto (pid 812)`; "" if it is hidden: another user's process, or another container's."""
    links = {f"socket:[{inode}]" for inode in _listening(port)}
    for process in Path("/proc").glob("[0-9]*"):
        if links and any(target in links for target in _descriptors(process)):
            try:
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
            except OSError:  # the process has ended meanwhile
                return ""
    return ""


def port_owner_writes(port: int, directory: Path) -> bool:
    """True if the process that listens there has a file of `directory` open. False also if it is hidden."""
    links = {f"socket:[{inode}]" for inode in _listening(port)}
    below = f"{directory.resolve()}/"
    for process in Path("/proc").glob("[0-9]*") if links else ():
        targets = set(_descriptors(process))
        if links & targets and any(target.startswith(below) for target in targets):
            return True
    return False


def _listening(port: int) -> Iterator[str]:
    """Inodes of the sockets that listen on `port`, on any address."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in (line.split() for line in lines):
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _descriptors(process: Path) -> Iterator[str]:
    try:
        for descriptor in (process / "fd").iterdir():
            yield str(descriptor.readlink())
    except OSError:
        return
