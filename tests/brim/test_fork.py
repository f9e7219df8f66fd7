"""Connections that were opened before a fork: a clear error in the child, no effect on the parent."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

import brim
from tests.support.brim_process import BrimProcess
from tests.support.forked import in_child

OPEN: dict[str, Callable[[BrimProcess], AbstractContextManager[Any]]] = {
    "client": lambda broker: brim.connect(f"mqtt://127.0.0.1:{broker.port}"),
    "consumer": lambda broker: brim.consumer("g", "a", runtime_dir=broker.runtime_dir),
    "reader": lambda broker: brim.reader("a", runtime_dir=broker.runtime_dir),
    "subscription": lambda broker: brim.subscribe_zmq("a", runtime_dir=broker.runtime_dir),
}


@pytest.mark.parametrize("noun", OPEN)
def test_a_forked_child_is_refused_and_ends(broker: BrimProcess, noun: str) -> None:
    with OPEN[noun](broker) as opened:

        def use() -> object:
            return opened.publish("b") if noun == "client" else opened.read()

        assert in_child(use) == f"NotOpen: the {noun} was opened before a fork"
        assert in_child(opened.close) == "None"
        assert use() is None
