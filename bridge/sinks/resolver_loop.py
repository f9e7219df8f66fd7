"""Event loop that looks up host names on daemon threads, one for each name at a time.

asyncio looks up names on a pool of threads, and a process ends only after all threads of the pool. A name
server that does not answer keeps a thread for minutes. The broker would wait for it at its stop.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import Future
from typing import Any, TypeAlias

_Query: TypeAlias = tuple[Any, ...]  # arguments of getaddrinfo()
_OPTIONS = ("family", "type", "proto", "flags")  # in this order


class ResolverLoop(asyncio.SelectorEventLoop):
    """Event loop of a sink. Its threads end with the process, whatever they wait for."""

    def __init__(self) -> None:
        super().__init__()
        self._lookups: dict[_Query, Future[Any]] = {}  # under way; callers whose time is over have left

    async def getaddrinfo(self, host: Any, port: Any, **options: int) -> Any:
        """See asyncio. A second call with the same arguments gets the result of the first."""
        query = (host, port, *(options.get(name, 0) for name in _OPTIONS))
        lookup = self._lookups.get(query)
        if lookup is None:
            lookup = Future()
            lookup.set_running_or_notify_cancel()  # a caller that is cancelled must not cancel it
            self._lookups[query] = lookup
            work, name = (query, lookup), "brim-resolver"
            thread = threading.Thread(target=self._look_up, args=work, name=name, daemon=True)
            try:
                thread.start()
            except BaseException:
                del self._lookups[query]
                raise
        return await asyncio.wrap_future(lookup, loop=self)

    def _look_up(self, query: _Query, lookup: Future[Any]) -> None:
        try:
            lookup.set_result(socket.getaddrinfo(*query))
        except BaseException as error:  # noqa: BLE001  the caller gets it
            lookup.set_exception(error)
        finally:
            del self._lookups[query]
