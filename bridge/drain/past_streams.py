"""Former streams: drained once by this bridge, and since then removed from the broker's configuration.

Owns the list of streams in the checkpoint. A stream that was renamed or removed may have records that the
sink does not have. They are drained to their end under the old name. A stream that the broker still has, and
that was only removed from this bridge, is not a former stream: it is no longer drained.
"""

from __future__ import annotations

import logging

from bridge.drain.checkpoint import Checkpoint
from bridge.drain.settings import BridgeSettings

log = logging.getLogger(__name__)


def streams_left(settings: BridgeSettings, checkpoint: Checkpoint) -> frozenset[str]:
    """Streams, and producers as "stream@producer", that this bridge drained and the broker no longer has."""
    if settings.known_streams is None:
        return frozenset()
    return frozenset(_streams_had(checkpoint) - set(settings.known_streams))


def note_streams(settings: BridgeSettings, checkpoint: Checkpoint) -> None:
    """Record the streams of this bridge, for when they are removed. Raises CheckpointError."""
    if settings.known_streams is None:
        return
    selected = settings.streams
    had, known = _streams_had(checkpoint), set(settings.known_streams)
    now = {name for name in known if not selected or name.partition("@")[0] in selected}
    streams = tuple(sorted(now | (had - known)))
    if streams == checkpoint.streams:
        return
    if taken := (had & known) - now:
        log.warning(
            "streams no longer drained name=%s streams=%s; add them to the streams of this bridge to drain "
            "the rest", settings.name, ",".join(sorted(taken)),
        )  # fmt: skip
    fresh, checkpoint.streams = checkpoint.fresh, streams
    checkpoint.save()
    checkpoint.fresh = fresh  # the sink may still have newer facts
    if left := had - known:
        log.info("former streams drained to their end streams=%s", ",".join(sorted(left)))


def _streams_had(checkpoint: Checkpoint) -> set[str]:
    return set(checkpoint.streams or (stream for stream, _ in checkpoint.cursors))
