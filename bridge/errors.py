"""Errors of the bridge and of its Spark jobs, as classes.

    BridgeError               .hint: the remedy, or ""
        BadName               an edge id, stream or URL that names of drained files cannot hold
        InvalidCommand              a command that a running bridge refuses
        BadTransform          a plug-in that cannot be loaded
        DrainedFileError      bytes that are not a valid drained file; .name
        SinkError
            SinkUnavailable   the sink did not take it: tried again, with back-off
            SinkBlocked       an operator must act: never tried again automatically
                SinkConflict  the name is taken by other content
        BridgeUnreachable     no bridge of that name answers here
        CheckpointError
            CheckpointBusy    another drain uses this checkpoint
            CheckpointMismatch the checkpoint belongs to another edge or another sink
            CheckpointNewer   a later version of Brim has written it
        SourceError           a ring that cannot be read: damaged, or behind the checkpoint
        SparkUnavailable      no Java, or no pyspark
        SourceOptionError     an option of the Spark source that cannot be used
        TableUnreachable      a store does not reveal whether a table is there, and of which kind
        TableBusy             another job writes or maintains the table, or has replaced the same files
        FilesMissing          drained files that a query needs are gone; .edge, .drain_seqs

Every message names the thing, the value, the limit and the remedy. Expected states are not errors: nothing to
drain, a file that is there already with the same content.
"""

from __future__ import annotations

from collections.abc import Sequence


class BridgeError(Exception):
    """Error that the operator of the bridge can resolve."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(hint)  # shown by Spark and in tracebacks, too

    def __reduce__(self) -> tuple[object, ...]:
        """Spark carries errors between processes: rebuild from the message, then restore the attributes."""
        return (_rebuilt, (type(self), str(self), self.__dict__))


def _rebuilt(kind: type[BridgeError], message: str, attributes: dict[str, object]) -> BridgeError:
    error = kind.__new__(kind, message)
    Exception.__init__(error, message)
    error.__dict__.update(attributes)
    return error


class BadName(BridgeError):
    """A name or URL that cannot be used."""


class InvalidCommand(BridgeError):
    """A command was refused; nothing has changed."""


class BadTransform(BridgeError):
    """A plug-in that does not exist, or is invalid."""


class DrainedFileError(BridgeError):
    """Bytes that are not a whole drained file. `name` is the name of the file, if it is known."""

    def __init__(self, message: str, *, name: str = "", hint: str = "") -> None:
        super().__init__(f"{name}: {message}" if name else message, hint=hint)
        self.name = name


class SinkError(BridgeError):
    """The sink has not taken a file."""


class SinkUnavailable(SinkError):
    """The sink cannot take it now: refused, unreachable, full, no permission. The same file is sent again."""


class SinkBlocked(SinkError):
    """Retries cannot help until an operator has done what the hint says."""


class SinkConflict(SinkBlocked):
    """Other content is stored under the name of this file."""


class BridgeUnreachable(BridgeError):
    """No bridge answers at the socket."""


class CheckpointError(BridgeError):
    """A checkpoint cannot be read or written."""


class CheckpointBusy(CheckpointError):
    """Another drain holds this checkpoint."""


class CheckpointMismatch(CheckpointError):
    """The checkpoint belongs to another edge or another sink."""


class CheckpointNewer(CheckpointError):
    """The checkpoint is intact, and of a version that is not known here."""


class SourceError(BridgeError):
    """The records of one partition cannot be read."""


class SparkUnavailable(BridgeError):
    """Spark cannot be started on this machine."""


class SourceOptionError(BridgeError):
    """An option of `format("brim")` that cannot be used."""


class TableUnreachable(BridgeError):
    """A store does not answer, or refuses: the content of a table is not known."""


class TableBusy(BridgeError):
    """Another job has the table. This one has changed nothing in it."""


class FilesMissing(BridgeError):
    """Drained files that belong to a batch are not there."""

    def __init__(self, message: str, *, edge: str, drain_seqs: Sequence[int], hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.edge = edge
        self.drain_seqs = tuple(drain_seqs)
