"""Why a request is not done, as a value that becomes an answer."""

from __future__ import annotations

from edge.consumers.messages import Code

__all__ = ["NotDone"]


class NotDone(Exception):
    """`code` and `hint` as in messages.Failed."""

    def __init__(self, error: str, code: Code, hint: str = "") -> None:
        super().__init__(error)
        self.code: Code = code
        self.hint = hint
