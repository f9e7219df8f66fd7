"""Steps: work on the broker's thread that is done a piece at a time.

A generator that yields at each point where other clients may be served, and returns its result. Between two
yields it takes well below a millisecond, whatever clients have sent. edge.broker.deferred runs it in slices;
at_once() runs it to its end.

Invariant: state that others can change is read again after each yield.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]


def at_once(steps: Steps[T]) -> T:
    """The result of `steps`, run to their end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
