"""Places of a table: its directory, and the state of its job next to it.

    TABLE/batch*000000012/...          files with the rows of a batch, and the log of a Delta or Iceberg table
    TABLE.state/checkpoint/            checkpoint of the job
    TABLE.state/quarantine/batch=...   records that could not be read, with the reason
    TABLE.state/iceberg.json           catalogue and name of an Iceberg table (iceberg_log.py)
    TABLE.state/write.lock             an flock: one job writes a table on this machine
    TABLE.state/compact.lock           an flock: one job maintains it
    TABLE.state/marks/, open/          state for the next batch (job_state.py)
    TABLE.state/late/batch=...         minutes of late values (jobs/live.py)

TABLE holds only the table, so TABLE/** is right for every engine. Versions before kept the state in TABLE/_*.
Such a table is refused, with the commands that move its state.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Literal

import pyarrow as pa
from pyarrow import fs

from bridge.errors import SourceOptionError, TableBusy, TableUnreachable

log = logging.getLogger(__name__)

OLD_STATE = ("_checkpoint", "_compact", "_late", "_marks", "_open", "_quarantine")
COMMIT_TRIES = 20  # of a batch, while other programs commit
UNLOADED = "Unable to load lib"  # of pyarrow for HDFS, on a machine with Hadoop only for Spark


def opened(directory: str) -> tuple[Any, str]:
    """File system and path of a path or URL in Spark's form. Raises ArrowInvalid, OSError."""
    filesystem, path = fs.FileSystem.from_uri(url_of(directory))
    return filesystem, path


def url_of(directory: str) -> str:
    """The absolute path, or the URL in the form of libraries other than Spark."""
    return directory.replace("s3a://", "s3://") if "://" in directory else os.path.abspath(directory)


def check_characters(table: str, refused: str) -> None:
    """Raise SourceOptionError if the path of a table has a character that its format cannot have."""
    if found := [character for character in refused if character in table]:
        text = f"{table} has {' and '.join(found)} in its path, which a table of this format cannot have"
        raise SourceOptionError(text, hint="choose another directory")


def is_there(directory: str, prefix: str = "") -> bool:
    """True if an entry there has a name with this prefix. False if only Spark can list the place.

    Raises TableUnreachable: the place cannot be listed. Treating that as absent would read files that a log
    has replaced, or begin a table a second time.
    """
    return any(name.startswith(prefix) for name in names_in(directory))


def names_in(directory: str) -> list[str]:
    """Names of the entries of a directory. See is_there()."""
    try:
        filesystem, path = opened(directory)
        entries = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    except NotADirectoryError:
        return []
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, pa.ArrowInvalid) or UNLOADED in str(error):
            return []
        raise TableUnreachable(
            f"{directory}: its content cannot be listed: {error}",
            hint="try again when it answers, and give this process credentials for it in the environment",
        ) from error
    return [entry.base_name for entry in entries]


def parquet_files(directory: str) -> list[Any]:
    """FileInfo of the Parquet files in and below a directory, in the order of their paths. Raises OSError."""
    filesystem, root = opened(directory)
    entries = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
    return sorted(
        (entry for entry in entries if entry.base_name.endswith(".parquet")), key=lambda entry: entry.path
    )


def directory_of(batch: int) -> str:
    """Directory of a batch in a plain table, and in the state."""
    return f"batch={batch:09d}"


def new_attempt() -> str:
    """Name of a run of a job, in the order of time."""
    return f"{time.time_ns() // 1_000_000:011x}{os.urandom(3).hex()}"


def forget(directory: str, name: str) -> None:
    """Delete `name`. If only Spark can reach the directory, it stays."""
    with suppress(pa.ArrowInvalid, OSError):
        filesystem, path = opened(directory)
        filesystem.delete_dir(f"{path}/{name}")


def state_of(table: str) -> str:
    """Directory of the state. Raises SourceOptionError: the table would be a whole bucket."""
    place = table.rstrip("/")
    _, scheme, rest = place.rpartition("://")
    if scheme and "/" not in rest:
        text = f"{table} is a whole bucket, and the state of the job is kept next to the table"
        raise SourceOptionError(text, hint=f"write a directory in it, as {place}/bronze")
    return f"{place}.state"


def checked_state(table: str) -> str:
    """As state_of(). Raises SourceOptionError: the state is inside the table; TableUnreachable."""
    state, place = state_of(table), table.rstrip("/")
    if old := sorted(set(names_in(table)).intersection(OLD_STATE)):
        moves = " && ".join(f"mv {place}/{name} {state}/{name.removeprefix('_')}" for name in old)
        raise SourceOptionError(
            f"{table} has the state of its job inside, as an earlier version wrote it: {', '.join(old)}",
            hint=f"stop its job and move the state: mkdir -p {state} && {moves}",
        )
    return state


def has_locks(directory: str) -> bool:
    """True if a path is of this machine's file system; object stores and HDFS have no locks."""
    return "://" not in directory.removeprefix("file://")


@contextmanager
def table_lock(table: str, use: Literal["write", "compact"]) -> Iterator[None]:
    """Lock one use of a table on this machine, where its file system has locks; object stores have none.

    Raises TableBusy, TableUnreachable, SourceOptionError.
    """
    state = checked_state(table).removeprefix("file://")
    with ExitStack() as opened_file:
        if has_locks(state):
            try:
                os.makedirs(state, exist_ok=True)
                file = opened_file.enter_context(open(f"{state}/{use}.lock", "wb"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                text = f"{table} is in use by another {use} job"
                raise TableBusy(text, hint="wait until that ends, or stop it, and run this again") from error
            except OSError as error:
                log.warning("table not locked, run one %s job on it table=%s reason=%s", use, table, error)
        yield


def taken(table: str, batch: int) -> TableBusy:
    """Error of an attempt that comes after the commit of another one. The table has the batch."""
    text = f"{table}: batch {batch} was committed meanwhile, by another job or by a try without an answer"
    return TableBusy(text, hint="let one job write a table at a time; run this again if no other one is left")


def check_records(directory: str, found: int, written: int) -> None:
    """Raise TableBusy if the files of a batch have not the records that were written."""
    if found != written:
        text = f"{directory} has {found} records, not {written}: another program has changed its files"
        raise TableBusy(text, hint="run this again")


def busy(table: str, error: object) -> TableBusy:
    """Error of a change that conflicts with that of another program. Nothing was changed."""
    text = f"{table}: another program has changed the same files meanwhile: {error}"
    return TableBusy(text, hint="run this again, and only one maintenance of a table at a time")
