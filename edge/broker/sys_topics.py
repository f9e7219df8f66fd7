"""$SYS topics: the broker's state and counters, published for MQTT subscribers.

Owns the topics under $SYS/broker/ and the times of their updates. Counts nothing itself.

The names are those of Mosquitto, so that dashboards made for it work. These messages are retained messages
only, in memory: they take no room in a ring, the log does not keep them and no bridge drains them. A new
subscriber gets the latest values at once, and changed values every `sys.interval_s` seconds.

TOPICS has the name and the meaning of each; docs/reference/sys-topics.md lists them (`./dev docs`).
"""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Mapping
from pathlib import Path

from edge.broker.connections import Connections
from edge.broker.counters import Counters
from edge.broker.router import Router
from edge.broker.sessions import Sessions
from edge.engine.engine import Engine

ROOT = "$SYS/broker/"
MINUTES = (1, 5, 15)
LOADS = {  # name behind load/: total that it is made of, and meaning
    "messages/received": ("messages/received", "MQTT packets received"),
    "messages/sent": ("messages/sent", "MQTT packets sent"),
    "publish/received": ("publish/messages/received", "Messages published by clients"),
    "publish/sent": ("publish/messages/sent", "Deliveries to clients"),
    "publish/dropped": ("publish/messages/dropped", "Lost messages and deliveries"),
    "bytes/received": ("bytes/received", "Bytes received on MQTT connections"),
    "bytes/sent": ("bytes/sent", "Bytes sent on MQTT connections"),
    "sockets": ("connections", "Accepted MQTT connections"),
    "connections": ("connections", "Accepted MQTT connections"),
}
TOPICS: Mapping[str, str] = {  # by name behind $SYS/broker/
    "version": "Name and version of the broker.",
    "uptime": 'Time since the start, such as "10 seconds".',
    "clients/total": "Sessions of connected and absent clients.",
    "clients/connected": "Connected clients.",
    "clients/active": "Older name of clients/connected.",
    "clients/disconnected": "Sessions of absent clients.",
    "clients/inactive": "Older name of clients/disconnected.",
    "clients/maximum": "Highest number of connected clients since the start.",
    "clients/expired": "Sessions that expired since the start.",
    "messages/received": "MQTT packets received since the start.",
    "messages/sent": "MQTT packets sent since the start.",
    "messages/stored": "Older name of retained messages/count.",
    "publish/messages/received": "Messages published by clients since the start.",
    "publish/messages/sent": "Deliveries to clients since the start.",
    "publish/messages/dropped": "Lost messages and deliveries since the start.",
    "publish/bytes/received": "Payload bytes of messages published by clients since the start.",
    "publish/bytes/sent": "Payload bytes of deliveries since the start.",
    "bytes/received": "Bytes received on MQTT connections since the start.",
    "bytes/sent": "Bytes sent on MQTT connections since the start.",
    "retained messages/count": "Retained messages.",
    "store/messages/count": "Retained messages.",
    "store/messages/bytes": "Memory of retained messages in bytes.",
    "subscriptions/count": "Subscriptions of all sessions.",
    "shared_subscriptions/count": "Shared subscriptions of all sessions.",
    "heap/current": "Resident memory of the process in bytes.",
    "heap/maximum": "Highest resident memory of the process in bytes.",
    "log/state": '"takes records", or the reason why the log takes none, with its directory.',
    "log/records": "Records made durable since the start.",
    "log/record_bytes": "Bytes of records made durable since the start.",
    "log/written_bytes": "Bytes written to the log since the start.",
    "log/syncs": "Syncs of the log since the start.",
    "log/unsynced_bytes": "Bytes taken from rings and not yet on disk.",
    "log/segments": "Segments.",
    "log/damaged_places": "Known damaged places.",
    "log/read_only": "1 while the log takes no records.",
    "log/fsync_p99_us": "Upper bound of 99 % of the durations of syncs in microseconds.",
    "log/commit_p99_us": "Upper bound of 99 % of the times from ring to durability in microseconds.",
    **{
        f"load/{name}/{minutes}min": f"{about} per minute: moving average over {minutes} min."
        for name, (_, about) in LOADS.items()
        for minutes in MINUTES
    },
}
_PAGE_BYTES = resource.getpagesize()
_STATM = Path("/proc/self/statm")


class SysTopics:
    """Publisher of $SYS topics every `interval_s` seconds; 0: never. `topic_of` makes topics known."""

    def __init__(
        self,
        engine: Engine,
        topic_of: Callable[[str], int | None],
        sessions: Sessions,
        clients: Connections,
        router: Router,
        interval_s: int,
        version: str,
        now_s: float,
    ) -> None:
        self._engine = engine
        self._topic_of = topic_of
        self._sessions = sessions
        self._clients = clients
        self._router = router
        self._interval_s = interval_s
        self._version = version
        self._stats = Counters(engine)
        self._began_s = self._last_s = now_s
        self._resident = 0  # bytes, at the last successful read
        self._published: dict[str, str] = {}
        self._loads: dict[str, _Load] = {}
        self.log_state: Callable[[], str] | None = None  # for log/state; None: there is no log
        self.next_s = now_s if interval_s else math.inf
        self.log: Callable[[], dict[str, int]] | None = None  # figures of the log, by topic name below log/

    def __len__(self) -> int:
        """Number of $SYS topics that are known."""
        return len(self._published)

    def publish_soon(self) -> None:
        """Publish changed values at the next tick."""
        if self._interval_s:
            self.next_s = -math.inf

    def tick(self, now_s: float) -> None:
        """Publish changed values, if an update is due."""
        if now_s < self.next_s:
            return
        self.next_s = now_s + self._interval_s
        totals = self._totals()
        for name, value in (self._state(now_s) | totals).items():
            self._publish_value(name, str(value))
        for name, value in (self.log() if self.log else {}).items():
            self._publish_value(f"log/{name}", str(value))
        if self.log_state is not None:
            self._publish_value("log/state", self.log_state())
        passed_s, self._last_s = now_s - self._last_s, now_s
        totals |= {"connections": self._stats.totals()["connections_opened"]}
        for name, (source, _) in LOADS.items():
            load = self._loads.setdefault(name, _Load())
            load.take(totals[source], passed_s)
            for minutes, average in zip(MINUTES, load.a_minute, strict=True):
                self._publish_value(f"load/{name}/{minutes}min", f"{average:.2f}")

    def _publish_value(self, name: str, text: str) -> None:
        if self._published.get(name) == text:
            return
        topic = self._topic_of(ROOT + name)
        if topic is None:
            return  # the table is full, and no other topic can make room
        if self._engine.retain(topic, text.encode(), 0, b"", 0, b"", b""):
            self._engine.retained_route(topic)
            self._published[name] = text

    def _totals(self) -> dict[str, int]:
        """Figures that only grow."""
        totals = self._stats.totals()
        return {
            "messages/received": totals["packets_in"],
            "messages/sent": totals["packets_out"] + totals["delivered"],
            "publish/messages/received": totals["published"],
            "publish/messages/sent": totals["delivered"],
            "publish/messages/dropped": sum(self._stats.dropped().values()),
            "publish/bytes/received": totals["published_bytes"],
            "publish/bytes/sent": totals["delivered_bytes"],
            "bytes/received": totals["bytes_in"],
            "bytes/sent": totals["bytes_out"],
        }

    def _state(self, now_s: float) -> dict[str, int | str]:
        now, clients = self._stats.gauges(), self._clients
        self._resident = resident = _resident_bytes() or self._resident
        return {
            "version": self._version,
            "uptime": f"{int(now_s - self._began_s)} seconds",
            "clients/total": len(self._sessions),
            "clients/connected": len(clients),
            "clients/active": len(clients),  # older name of `connected`
            "clients/disconnected": self._sessions.away,
            "clients/inactive": self._sessions.away,
            "clients/maximum": clients.clients_max_seen,
            "clients/expired": self._sessions.expired,
            "retained messages/count": now["retained"],
            "store/messages/count": now["retained"],
            "store/messages/bytes": now["retained_bytes"],
            "messages/stored": now["retained"],
            "subscriptions/count": self._router.subscription_count,
            "shared_subscriptions/count": self._router.shared_count,
            "heap/current": resident,
            "heap/maximum": max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, resident),
        }


class _Load:
    """Rate per minute: one exponential moving average for each of MINUTES."""

    def __init__(self) -> None:
        self.a_minute = [0.0] * len(MINUTES)
        self._total = 0

    def take(self, total: int, passed_s: float) -> None:
        """Add the new total, `passed_s` after the previous one."""
        increase, self._total = total - self._total, total
        if passed_s <= 0:
            return
        now = increase * 60 / passed_s
        for i, minutes in enumerate(MINUTES):
            weight = math.exp(-passed_s / (60 * minutes))
            self.a_minute[i] = now + (self.a_minute[i] - now) * weight


def _resident_bytes() -> int:
    """Resident memory of the process; 0 if it cannot be read, for example without a free descriptor."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
