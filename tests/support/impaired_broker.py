"""`brim` with mistakes that the soak must find: $MISTAKES, names with a comma between them.

loss     the topic "plain/c" has no route until one message has passed: it was acknowledged
leak     $LEAK_KIB_PER_S of memory are allocated and never freed
pause    the thread that serves MQTT sleeps once, for PAUSE_S

They begin one after the other, once PUBLISHED messages were published.
"""

import os
import sys
import threading
import time
from array import array
from collections.abc import Callable
from typing import Any

from edge.broker.counters import Counters
from edge.broker.dispatcher import Broker
from edge.cli import main
from tests.support.measured_broker import measured

TOPIC = b"plain/c"
PAUSE_S = 1.5
STEP_S = 0.1
PUBLISHED = 500
_kept: list[bytearray] = []


def loss(broker: Broker, on_its_thread: Callable[[Callable[[], object]], None]) -> None:
    """Lose one message, at least, of a topic that has subscribers."""
    engine, stats = broker.engine, Counters(broker.engine)
    topic = engine.topic_find(TOPIC)
    routes = engine.routes_of(topic)
    assert routes, "nobody subscribes to the topic"
    on_its_thread(lambda: engine.routes_clear(topic))
    delivered = stats.totals()["published"]
    while stats.totals()["published"] < delivered + 20:  # of all topics, of which it has 15 percent
        time.sleep(0.001)
    on_its_thread(lambda: [engine.routes_add(array("I", [topic]), *route) for route in routes])


def leak(_broker: Broker, _on_its_thread: object) -> None:
    """Allocate at a pace, for ever."""
    size = int(float(os.environ["LEAK_KIB_PER_S"]) * 1024 * STEP_S)
    while True:
        _kept.append(bytearray(os.urandom(1) * size))
        time.sleep(STEP_S)


def pause(_broker: Broker, on_its_thread: Callable[[Callable[[], object]], None]) -> None:
    """Serve no client for a while."""
    on_its_thread(lambda: time.sleep(PAUSE_S))


def impair(broker: Broker) -> None:
    """All mistakes, one after the other."""

    def on_its_thread(call: Callable[[], object]) -> None:
        done = threading.Event()

        def called() -> None:
            call()
            done.set()

        assert broker.call is not None
        broker.call(called)
        assert done.wait(60)

    stats = Counters(broker.engine)
    while stats.totals()["published"] < PUBLISHED:
        time.sleep(0.01)
    mistakes = {"loss": loss, "pause": pause, "leak": leak}
    chosen = os.environ["MISTAKES"].split(",")
    for name, mistake in mistakes.items():
        if name in chosen:
            mistake(broker, on_its_thread)


def impaired(begin: Callable[..., None]) -> Callable[..., None]:
    def begun(self: Broker, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        threading.Thread(target=impair, args=(self,), daemon=True).start()

    return begun


if __name__ == "__main__":
    Broker.__init__ = impaired(measured(Broker.__init__))  # type: ignore[method-assign]
    sys.exit(main())
