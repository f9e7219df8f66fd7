"""Lookups of host names on threads that do not delay the end of the process."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from bridge.sinks.resolver_loop import ResolverLoop
from tests.support.waiting import PATIENCE_S, wait_until

HERE = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1883))]


@pytest.fixture
def loop() -> Iterator[ResolverLoop]:
    with closing(ResolverLoop()) as made:
        yield made


class SilentServer:
    """Name server that answers when `answers` is set. The real one takes minutes, and root."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.lookups: list[threading.Thread] = []

    def __call__(self, *_: Any) -> list[Any]:
        self.lookups.append(threading.current_thread())
        assert self.answers.wait(PATIENCE_S)
        return HERE


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentServer]:
    silent = SilentServer()
    monkeypatch.setattr(socket, "getaddrinfo", silent)
    yield silent
    silent.answers.set()
    for thread in silent.lookups:
        thread.join(PATIENCE_S)


def test_a_lookup_has_the_results_and_the_errors_of_the_system(loop: ResolverLoop) -> None:
    given = {"family": socket.AF_INET, "type": socket.SOCK_DGRAM, "proto": 17, "flags": socket.AI_NUMERICHOST}
    looked_up = loop.run_until_complete(loop.getaddrinfo("127.0.0.1", 1883, **given))
    assert looked_up == socket.getaddrinfo("127.0.0.1", 1883, **given)
    with pytest.raises(socket.gaierror):
        loop.run_until_complete(loop.getaddrinfo("no address", 1883, **given))


def test_one_thread_looks_up_a_name_for_all_callers_although_one_is_cancelled(
    loop: ResolverLoop, server: SilentServer
) -> None:
    async def look_up() -> Any:
        callers = [asyncio.ensure_future(loop.getaddrinfo("a", 1883)) for _ in range(2)]
        other = asyncio.ensure_future(loop.getaddrinfo("a", 1884))
        await asyncio.sleep(0)
        callers[0].cancel()
        await asyncio.wait(callers[:1])
        callers.append(asyncio.ensure_future(loop.getaddrinfo("a", 1883)))
        await asyncio.sleep(0)
        server.answers.set()
        return await asyncio.gather(*callers[1:], other)

    assert loop.run_until_complete(look_up()) == [HERE] * 3
    assert len(server.lookups) == 2
    assert all(thread.daemon for thread in server.lookups)


def test_the_next_call_looks_up_again(loop: ResolverLoop, server: SilentServer) -> None:
    server.answers.set()
    for number in (1, 2):
        assert loop.run_until_complete(loop.getaddrinfo("a", 1883)) == HERE
        wait_until(lambda: not any(thread.is_alive() for thread in server.lookups))
        assert len(server.lookups) == number


def test_a_lookup_without_a_thread_fails_and_a_later_one_does_not(
    loop: ResolverLoop, server: SilentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers.set()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            loop.run_until_complete(loop.getaddrinfo("a", 1883))
    assert loop.run_until_complete(loop.getaddrinfo("a", 1883)) == HERE
