"""Readers of partitions without a group, for programs without asyncio: the program keeps the places itself.

    with PartitionReader("plant/#", start=places) as batches:
        for batch in batches:
            with database:  # one transaction for the results and the place
                store(batch)
                store_place(batch.ring, batch.next)

reader_asyncio.py has the form for asyncio, with the same methods.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Mapping

from edge.config.directories import StrPath
from edge.consumers.client_socket import endpoint_of
from edge.consumers.core_connection import BlockingConnection, CoreConnection, check_argument, check_filters
from edge.consumers.protocol import BATCH_MAX_BYTES
from edge.consumers.reader_state import PartitionBatch, ReaderCore, ReaderStart
from edge.consumers.replay_clock import SPEED_MAX, SPEED_MIN
from edge.consumers.start_place import OFFSET_MAX, time_words, unix_ns
from edge.errors import InvalidArgument
from edge.local.curve_keys import Curve
from edge.local.shm_subscription import Place

EPOCH_MAX = (1 << 32) - 1


class ReaderConnection(CoreConnection[PartitionBatch]):
    """State and arguments that both forms share.  Arguments: see PartitionReader."""

    _core: ReaderCore
    _noun = "reader"

    def __init__(
        self,
        filters: str | Iterable[str],
        *,
        start: ReaderStart = "latest",
        speed: float | None = None,
        batch_bytes: int = 1 << 20,
        connect_timeout_s: float = 5.0,
        runtime_dir: StrPath | None = None,
        endpoint: str = "",
        curve: Curve | None = None,
    ) -> None:
        if speed is not None:
            check_argument("speed", speed, SPEED_MIN, SPEED_MAX, "1 is the original speed")
        _check_start(start)
        check_argument("batch_bytes", batch_bytes, 1, BATCH_MAX_BYTES)
        core = ReaderCore(check_filters(filters), start, speed, batch_bytes)
        super().__init__(core, endpoint_of(runtime_dir, endpoint), curve, connect_timeout_s)

    @property
    def lost(self) -> int:
        """Number of records that were gone, or damaged, before they were read."""
        return self._core.lost

    def places(self) -> dict[str, Place]:
        """Place in each partition behind the records that were returned so far: a `start` for a later reader.

        Records that match no filter are passed over, so a place may be behind that of the last batch.
        """
        return self._core.places()


class PartitionReader(ReaderConnection, BlockingConnection[PartitionBatch]):
    """Records of the topics that `filters` match, from every partition that has some.

    Iterate with `for` inside `with`; iteration does not end. The broker keeps no offsets: the program stores
    the place behind each batch (`batch.next`), in the transaction of its results, and gives the places back
    as `start` later. So each record has its effect once, also if the program or the broker is killed.

    `start`: a mapping from ring to place (partitions that are not in it begin at their oldest record),
    "oldest", "latest", or a datetime that is not in the future (local, if it has no time zone). `speed`:
    replay at the original speed times this, 0.001 to 1,000,000; None: as fast as possible. `batch_bytes`:
    about as much comes at once of a partition.

    Raises InvalidArgument. Entering raises BrokerUnreachable, or Refused.
    """


def _check_start(start: ReaderStart) -> None:
    """Raise InvalidArgument for a start that the broker would refuse."""
    if isinstance(start, dt.datetime):
        now_ns = time.time_ns()
        if unix_ns(start) > now_ns:
            text = f"start {start.isoformat()} is in the future (allowed: up to {time_words(now_ns)})"
            raise InvalidArgument(text, hint="choose an earlier time, or 'latest'")
    elif isinstance(start, Mapping):
        for ring, (epoch, offset) in start.items():
            check_argument(f"epoch of {ring}", epoch, 0, EPOCH_MAX)
            check_argument(f"offset in {ring}", offset, 0, OFFSET_MAX)
    elif start not in {"oldest", "latest"}:
        text = f"invalid start {start!r} (allowed: 'oldest', 'latest', a datetime, places by ring)"
        raise InvalidArgument(text, hint="choose one of them; places() returns places by ring")
