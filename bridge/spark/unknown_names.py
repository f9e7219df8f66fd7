"""Unknown names: edges and streams in the options that no file in the landing zone has, usually mistyped.

Without this check a query finds no rows, and looks like a plant without messages. A table refuses such a
name. A stream may be started before the first file of a Brim stream is drained, so it only reports the name.
A pattern, with *, matches any names, and an empty landing zone has no names yet: both are accepted.

Only names that the planning has listed are used.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Sequence

from bridge.errors import SourceOptionError
from bridge.spark.landing_zone import Landing, StoredFile
from bridge.spark.options import SourceOptions

NAMED_MAX = 20  # of the present names, in a message
LOG = logging.getLogger("brim.spark")


def refuse_unknown(options: SourceOptions, files: Sequence[StoredFile]) -> None:
    """Raise SourceOptionError for a name that none of `files` has. `files`: all of the wanted edges."""
    edges, streams = {file.name.edge for file in files}, {file.name.stream for file in files}
    if problem := _unknown(options, edges, streams):
        raise SourceOptionError(problem[0], hint=problem[1])


def warn_of_unknown(options: SourceOptions, edges: Collection[str], streams: Collection[str]) -> bool:
    """Report a name on stderr that none of these is. Returns True if there was one."""
    if problem := _unknown(options, edges, streams):
        LOG.warning('format("brim"): %s, and this query waits for it (%s)', *problem)
    return problem is not None


def _unknown(
    options: SourceOptions, edges: Collection[str], streams: Collection[str]
) -> tuple[str, str] | None:
    """The error for an unknown name, and the names that could be meant."""
    if lacking := _lacking(options.edges, edges):
        return _unknown_name("edge", lacking, Landing(options.path).edges())
    return _unknown_name("stream", _lacking(options.streams, streams), streams)


def _lacking(names: Sequence[str], there: Collection[str]) -> str | None:
    return next(
        (name for name in names if not any(character in name for character in "*?[") and name not in there),
        None,
    )


def _unknown_name(kind: str, name: str | None, there: Collection[str]) -> tuple[str, str] | None:
    if name is None or not there:
        return None
    near = difflib.get_close_matches(name, there, 1)
    known = ", ".join(sorted(there)[:NAMED_MAX]) + (", ..." if len(there) > NAMED_MAX else "")
    hint = f"did you mean {near[0]}? there are {known}" if near else f"there are {known}"
    return f"no drained file is of {kind} {name!r}", f"{hint}; {name}* takes what may come as well"
