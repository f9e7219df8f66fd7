"""Readers of partitions without a group, for asyncio: the methods of reader.py as coroutines."""

from __future__ import annotations

from edge.consumers.core_connection_asyncio import AsyncioConnection
from edge.consumers.reader import ReaderConnection
from edge.consumers.reader_state import PartitionBatch


class PartitionReader(ReaderConnection, AsyncioConnection[PartitionBatch]):
    """Records of some topics, from every partition: reader.PartitionReader for asyncio, same arguments.

    Iterate with `async for` inside `async with`. Entering raises BrokerUnreachable, or Refused.
    """
