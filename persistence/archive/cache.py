"""Cache of decoded row groups: bounded by bytes, the least recently used goes first."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from persistence.archive.records import Records

Key: TypeAlias = tuple[int, int, bytes | None]  # base of the archive, index of the row group, topic


class Cache:
    """Records of row groups, at most `limit_bytes` of them."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._items: OrderedDict[Key, Records] = OrderedDict()
        self._bytes = 0

    def get(self, key: Key) -> Records | None:
        """The records under that key, if they are still kept."""
        item = self._items.get(key)
        if item is not None:
            self._items.move_to_end(key)
        return item

    def put(self, key: Key, records: Records) -> None:
        """Keep them, unless they are larger than all that may be kept."""
        if records.memory_bytes > self.limit_bytes or key in self._items:
            return
        self._items[key] = records
        self._bytes += records.memory_bytes
        while self._bytes > self.limit_bytes:
            self._bytes -= self._items.popitem(last=False)[1].memory_bytes

    def forget(self, base: int | None = None) -> None:
        """Drop the records of that archive, or all."""
        for key in [key for key in self._items if base is None or key[0] == base]:
            self._bytes -= self._items.pop(key).memory_bytes
