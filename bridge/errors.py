"""What can go wrong on the way out, as classes.

    BridgeError               .hint: what to do about it, or ""
        BadName               an edge id, stream or URL that names of drained files cannot hold
        BadOrder              what a running bridge was told cannot be done
        BadTransform          a plug-in that cannot be loaded
        DrainedFileError      bytes that are not the drained file they should be; .name
        SinkError
            SinkUnavailable   the sink did not take it: tried again, with back-off
            SinkBlocked       people must act: never tried again by itself
                SinkConflict  the name is taken by other content
        BridgeUnreachable         no bridge of that name answers here
        CheckpointError
            CheckpointBusy    another drain works with this checkpoint
            CheckpointForeign it belongs to another edge or another sink
            CheckpointNewer   a later version of Brim has written it
        SourceError           a ring that cannot be read: damaged, or behind the checkpoint
        SparkUnavailable      no Java, or no pyspark
        SourceOptionError     an option of the Spark source that cannot be used
        TableUnreachable      whether a table is there, and of which kind, cannot be seen now
        FilesMissing          drained files that a query needs are gone; .edge, .drain_seqs

Every message names the thing, the value, the limit and the remedy.  What is normal is no error: nothing to
drain, a file that is there already with the same content.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "BadName",
    "BadOrder",
    "BadTransform",
    "BridgeError",
    "BridgeUnreachable",
    "CheckpointBusy",
    "CheckpointError",
    "CheckpointForeign",
    "CheckpointNewer",
    "DrainedFileError",
    "FilesMissing",
    "SinkBlocked",
    "SinkConflict",
    "SinkError",
    "SinkUnavailable",
    "SourceError",
    "SourceOptionError",
    "SparkUnavailable",
    "TableUnreachable",
]


class BridgeError(Exception):
    """Something the person who runs the bridge can do something about."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(hint)  # Spark and tracebacks show it, too

    def __reduce__(self) -> tuple[object, ...]:
        """Spark carries errors between processes: rebuilt from the message, with the attributes laid on."""
        return (_rebuilt, (type(self), str(self), self.__dict__))


def _rebuilt(kind: type[BridgeError], message: str, attributes: dict[str, object]) -> BridgeError:
    error = kind.__new__(kind, message)
    Exception.__init__(error, message)
    error.__dict__.update(attributes)
    return error


class BadName(BridgeError):
    """A name or URL that cannot be used."""


class BadOrder(BridgeError):
    """Nothing has changed."""


class BadTransform(BridgeError):
    """A plug-in that is not there, or is none."""


class DrainedFileError(BridgeError):
    """These bytes are not a whole drained file.  `name` is the file's, as far as it is known."""

    def __init__(self, message: str, *, name: str = "", hint: str = "") -> None:
        super().__init__(f"{name}: {message}" if name else message, hint=hint)
        self.name = name


class SinkError(BridgeError):
    """The sink has not taken a unit."""


class SinkUnavailable(SinkError):
    """Not now: refused, unreachable, full, no permission.  The same unit is offered again."""


class SinkBlocked(SinkError):
    """Trying again cannot help, until somebody has done what the hint says."""


class SinkConflict(SinkBlocked):
    """Something else is stored under the name of this unit."""


class BridgeUnreachable(BridgeError):
    """Nobody answers at its socket."""


class CheckpointError(BridgeError):
    """How far the sink has got cannot be read or written."""


class CheckpointBusy(CheckpointError):
    """Another drain holds this checkpoint."""


class CheckpointForeign(CheckpointError):
    """It tells of another edge or another sink."""


class CheckpointNewer(CheckpointError):
    """It is whole, and of a version that is not known here."""


class SourceError(BridgeError):
    """The records of one partition cannot be read."""


class SparkUnavailable(BridgeError):
    """Spark cannot be started on this machine."""


class SourceOptionError(BridgeError):
    """An option of `format("brim")` that cannot be used."""


class TableUnreachable(BridgeError):
    """A store that does not answer, or refuses: what a table holds is not known."""


class FilesMissing(BridgeError):
    """Drained files that belong into a batch are not there."""

    def __init__(self, message: str, *, edge: str, drain_seqs: Sequence[int], hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.edge = edge
        self.drain_seqs = tuple(drain_seqs)
