"""`brim` with one mistake planted in its bridge: so the campaign over the whole pipeline would see it.

python -m tests.support.planted_bridge MISTAKE bridge run lake --config ...

careless     what the sink has refused is written down as done
renaming     what a crash has interrupted is put again with one record less, and so under another name
miscounting  what is lost is declared but for its last record
hopping      the cursor moves one record too far
dying        no mistake: it kills itself when the first put of its life has returned
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from bridge.drain import bridge, next_files
from bridge.drain.checkpoint import Checkpoint
from bridge.drain.sender import FileDelivery, Shipment
from bridge.errors import SinkError
from bridge.format.cursor import Cursor
from bridge.format.file_builder import DrainedFile
from edge.cli import main

_put = FileDelivery._put
_at = Cursor.at
_range = next_files._range


def careless() -> None:
    def put(self: FileDelivery, shipment: Shipment, built: Future[DrainedFile]) -> Sequence[Any]:
        try:
            return _put(self, shipment, built)
        except SinkError:
            return ()

    FileDelivery._put = put  # type: ignore[method-assign]


def renaming() -> None:
    class Renaming(Checkpoint):
        @classmethod
        def open(cls, *arguments: Any, **options: Any) -> Checkpoint:
            checkpoint = Checkpoint.open(*arguments, **options)
            for number, it in enumerate(checkpoint.intents):
                last = max(it.last_offset - 1, it.first_offset)
                checkpoint.intents[number] = replace(it, last_offset=last)
            return checkpoint

    vars(bridge)["Checkpoint"] = Renaming


def miscounting() -> None:
    next_files._range = lambda first, end: _range(first, end - 1)


def hopping() -> None:
    Cursor.at = lambda self, offset: _at(self, offset + 1)  # type: ignore[method-assign]


def dying() -> None:
    def put(self: FileDelivery, shipment: Shipment, built: Future[DrainedFile]) -> Sequence[Any]:
        _put(self, shipment, built)
        os.kill(os.getpid(), signal.SIGKILL)
        return ()

    FileDelivery._put = put  # type: ignore[method-assign]


MISTAKES: dict[str, Callable[[], None]] = {
    it.__name__: it for it in (careless, renaming, miscounting, hopping, dying)
}

if __name__ == "__main__":
    MISTAKES[sys.argv.pop(1)]()
    sys.exit(main())
