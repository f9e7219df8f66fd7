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
import math
from collections.abc import Iterable, Mapping

from edge.config.directories import StrPath
from edge.consumers.client_socket import Curve, endpoint_of
from edge.consumers.core_connection import BlockingConnection, CoreConnection, check_argument
from edge.consumers.protocol import BATCH_MAX_BYTES
from edge.consumers.reader_state import PartitionBatch, ReaderCore, ReaderStart
from edge.errors import InvalidArgument
from edge.local.filters import checked_filters
from edge.local.shm_subscription import Place

__all__ = ["PartitionReader", "ReaderConnection"]


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
        if speed is not None and not 0 < speed < math.inf:
            raise InvalidArgument(f"invalid speed {speed} (allowed: above 0)", hint="1 is the original speed")
        if not isinstance(start, Mapping | dt.datetime) and start not in {"oldest", "latest"}:
            text = f"invalid start {start!r} (allowed: 'oldest', 'latest', a datetime, places by ring)"
            raise InvalidArgument(text, hint="choose one of them; places() returns places by ring")
        check_argument("batch_bytes", batch_bytes, 1, BATCH_MAX_BYTES)
        core = ReaderCore(checked_filters(filters), start, speed, batch_bytes)
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
    "oldest", "latest", or a datetime (local, if it has no time zone). `speed`: replay at the original speed
    times this; None: as fast as possible. `batch_bytes`: about as much comes at once of a partition.

    Raises InvalidArgument. Entering raises BrokerUnreachable, or Refused.
    """
