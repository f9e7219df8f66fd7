"""Retries: failures that are logged as one kind."""

import logging

import pytest

from bridge.backoff import Backoff
from bridge.drain.retries import Retries
from bridge.errors import SinkUnavailable


def test_only_the_beginning_of_a_long_error_is_compared(caplog: pytest.LogCaptureFixture) -> None:
    """The expression that compares them takes quadratic time, with the lock of the interpreter."""
    retries = Retries("lake", Backoff(0.0, 0.0))
    with caplog.at_level(logging.WARNING):
        for page in ("one", "two", "three"):
            retries.failed(SinkUnavailable("a portal answers: " + "x" * 1_000 + page))
    assert [record.name for record in caplog.records] == ["bridge.drain.retries"]
