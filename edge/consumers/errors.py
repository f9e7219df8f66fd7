"""Error of a request, which becomes an answer."""

from __future__ import annotations

from edge.consumers.messages import Code

__all__ = ["NotDone"]


class NotDone(Exception):
    """A request that was not done. `code` and `hint` as in messages.Failed."""

    def __init__(self, error: str, code: Code, hint: str = "") -> None:
        super().__init__(error)
        self.code: Code = code
        self.hint = hint
