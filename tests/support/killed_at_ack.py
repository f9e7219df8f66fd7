"""A drain of a process of its own that is killed, with SIGKILL, when its sink has taken things N times: what
it took last, the checkpoint does not know.

    python -m tests.support.killed_at_ack RUNTIME_DIRECTORY ROOT URL N [SETTINGS]

N = 0: it drains until nothing waits.  SETTINGS: of the bridge, as JSON.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from bridge.errors import SinkUnavailable
from bridge.format.sink_batch import Rejected, SinkBatch
from bridge.sinks.interface import RecordSink, Sink
from bridge.sinks.registry import open_sink
from tests.support.bridges import drain, run_dry, settings

BEGINS_MAX = 50


class _Countdown:
    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def begin(sink: Sink, edge: str) -> None:
    """Until it works, as a bridge does: a Kafka that makes a topic has none for a moment."""
    for _ in range(BEGINS_MAX):
        try:
            sink.begin(edge)
            return
        except SinkUnavailable:
            time.sleep(0.1)
    sink.begin(edge)


class _Records:
    """Pass all records on, and kill this process before the drain gets the acknowledgement."""

    def __init__(self, inner: RecordSink, countdown: _Countdown) -> None:
        self._inner, self._countdown, self.url = inner, countdown, inner.url

    def begin(self, edge: str) -> None:
        begin(self._inner, edge)

    def send(self, records: SinkBatch) -> Future[Sequence[Rejected]]:
        future = self._inner.send(records)
        future.add_done_callback(self._countdown)  # before the one of the drain
        return future

    def close(self) -> None:
        self._inner.close()


def main() -> None:
    runtime, root, url, left = Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:5]
    more = {"file_bytes": 16_384, **(json.loads(sys.argv[5]) if sys.argv[5:] else {})}
    inner, countdown = open_sink(url), _Countdown(int(left))
    sink: Sink = _Records(inner, countdown) if isinstance(inner, RecordSink) else inner
    with drain(settings(runtime, root, **more), sink) as drained:
        run_dry(drained)


if __name__ == "__main__":
    main()
