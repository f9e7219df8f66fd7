"""Screen of the demo: one live screen on a terminal, plain lines otherwise.

Owns the presentation, and none of the facts. The script passes a View a few times a second, and a sentence
for each event. Results at the end are printed below both kinds of screen.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

EVENTS_SHOWN = 9
BAR_CELLS = 20
PLAIN_INTERVAL_S = 5.0
PLAIN_WIDTH = 132


@dataclass(frozen=True)
class Publisher:
    """State of a publisher's process."""

    name: str
    state: str
    published: int
    acked: int
    per_second: float
    resent: int


@dataclass(frozen=True)
class Subscriber:
    """State of a local subscriber. Ages in microseconds, from the device to the subscriber; 0: not known."""

    name: str
    state: str
    records: int
    per_second: float
    gaps: int
    fetched: int  # fetched from the ring because they had not arrived
    age_p50_us: float
    age_p99_us: float


@dataclass(frozen=True)
class Bridge:
    """State of the bridge."""

    state: str
    drained: int
    files: int
    waiting: int


@dataclass(frozen=True)
class View:
    """All facts to show. `acts` are (title, state), with state one of done, now, next."""

    acts: Sequence[tuple[str, str]]
    broker: str
    publishers: Sequence[Publisher] = ()
    subscribers: Sequence[Subscriber] = ()
    bridge: Bridge | None = None


class Screen(Protocol):
    """Screen on which a run is shown."""

    console: Console

    def happened(self, text: str) -> None:
        """Show a sentence about an event."""

    def show(self, view: View) -> None:
        """Show the present state."""

    def close(self) -> None:
        """End the screen; the console is free for results. May be called twice."""


def screen_for(*, plain: bool) -> Screen:
    """A live screen if standard output is a terminal, unless `plain`."""
    console = Console(highlight=False)
    if plain or not console.is_terminal or console.is_dumb_terminal:
        return PlainScreen()
    return LiveScreen(console)


@dataclass
class PlainScreen:
    """One line for each event, and one each PLAIN_INTERVAL_S."""

    console: Console = field(
        default_factory=lambda: Console(
            highlight=False, width=PLAIN_WIDTH, no_color=True, force_terminal=False
        )
    )
    _began: float = field(default_factory=time.monotonic)
    _next: float = 0.0
    _last: str = ""

    def happened(self, text: str) -> None:
        """See Screen."""
        print(f"{self._clock()}  {text}", flush=True)

    def show(self, view: View) -> None:
        """See Screen."""
        now = time.monotonic()
        if now < self._next or not view.publishers:
            return
        self._next = now + PLAIN_INTERVAL_S
        published = sum(publisher.published for publisher in view.publishers)
        acked = sum(publisher.acked for publisher in view.publishers)
        rate = sum(publisher.per_second for publisher in view.publishers)
        parts = [f"published {published:,} ({rate:,.0f}/s), acknowledged {acked:,}"]
        parts += [f"{subscriber.name} {subscriber.records:,}" for subscriber in view.subscribers]
        if view.bridge:
            parts.append(
                f"drained {view.bridge.drained:,}, waiting {view.bridge.waiting:,} ({view.bridge.state})"
            )
        line = " | ".join(parts)
        if line != self._last:
            print(f"{self._clock()}    {line}", flush=True)
        self._last = line

    def close(self) -> None:
        """See Screen."""

    def _clock(self) -> str:
        return f"{time.monotonic() - self._began:6.1f} s"


class LiveScreen:
    """One screen, redrawn a few times a second."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._began = time.monotonic()
        self._events: deque[tuple[float, str]] = deque(maxlen=EVENTS_SHOWN)
        self._all: list[tuple[float, str]] = []
        self._most_waiting = 1
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def happened(self, text: str) -> None:
        """See Screen."""
        event = (time.monotonic() - self._began, text)
        self._events.append(event)
        self._all.append(event)

    def show(self, view: View) -> None:
        """See Screen."""
        self._live.update(Group(*self._parts(view)), refresh=True)

    def close(self) -> None:
        """See Screen. The events stay readable."""
        if self._live.is_started:
            self._live.stop()
            for at, text in self._all:
                self.console.print(Text.assemble((f"{at:6.1f} s  ", "dim"), text))

    def _parts(self, view: View) -> list[RenderableType]:
        parts: list[RenderableType] = [self._head(view), Text()]
        if view.publishers:
            parts += [_publishers(view.publishers), Text()]
        if view.subscribers:
            parts += [_subscribers(view.subscribers), Text()]
        if view.bridge:
            parts += [self._bridge(view.bridge), Text()]
        parts += [Text.assemble((f"{at:6.1f} s  ", "dim"), text) for at, text in self._events]
        return parts

    def _head(self, view: View) -> Text:
        marks = {"done": ("✓ ", "green"), "now": ("● ", "bold cyan"), "next": ("○ ", "dim")}
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        head = Text()
        head.append("Brim", "bold cyan")
        head.append("  from a device to a Spark table   ")
        head.append(f"{minutes}:{seconds:02d}   ", "bold")
        head.append(view.broker + "\n", "dim")
        column = 0
        for title, state in view.acts:
            mark, style = marks[state]
            if column + len(mark + title) > self.console.width:
                head.append("\n")
                column = 0
            head.append(mark + title + "  ", style)
            column += len(mark + title) + 2
        return head

    def _bridge(self, bridge: Bridge) -> Table:
        self._most_waiting = max(self._most_waiting, bridge.waiting)
        filled = round(BAR_CELLS * bridge.waiting / max(self._most_waiting, 2_000))
        bar = Text.assemble(("█" * filled, _style(bridge.state)), ("░" * (BAR_CELLS - filled), "dim"))
        table = _table("Bridge", "drained", "files", "waiting")
        table.add_column("buffer")
        numbers = (f"{bridge.drained:,}", f"{bridge.files:,}", f"{bridge.waiting:,}")
        table.add_row("to the directory", _state(bridge.state), *numbers, bar)
        return table


def _publishers(publishers: Sequence[Publisher]) -> Table:
    table = _table("Publishers", "published", "acked", "in flight", "per s", "again")
    for publisher in publishers:
        numbers = (
            publisher.published,
            publisher.acked,
            publisher.published - publisher.acked,
            round(publisher.per_second),
            publisher.resent,
        )
        table.add_row(publisher.name, _state(publisher.state), *(f"{number:,}" for number in numbers))
    return table


def _subscribers(subscribers: Sequence[Subscriber]) -> Table:
    table = _table("Subscribers", "records", "per s", "gaps", "fetched", "age p50", "age p99")
    for subscriber in subscribers:
        numbers = [
            f"{number:,}"
            for number in (
                subscriber.records,
                round(subscriber.per_second),
                subscriber.gaps,
                subscriber.fetched,
            )
        ]
        table.add_row(
            subscriber.name,
            _state(subscriber.state),
            *numbers,
            _age(subscriber.age_p50_us),
            _age(subscriber.age_p99_us),
        )
    return table


def _table(title: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(title, min_width=16)  # everything fits 80 columns
    table.add_column("", min_width=10)
    for name in numbers:
        table.add_column(name, justify="right", min_width=7)
    return table


def _age(microseconds: float) -> str:
    if not microseconds:
        return "-"
    return f"{microseconds:,.0f} µs" if microseconds < 10_000 else f"{microseconds / 1000:,.0f} ms"


def _style(state: str) -> str:
    good = {"connected", "reading", "draining", "idle", "running", "finished"}
    return "green" if state in good else "yellow" if state in {"starting", "recording"} else "bold red"


def _state(state: str) -> Text:
    return Text(state, _style(state))
