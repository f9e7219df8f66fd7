"""A broker for programs that use `brim`, and no thread left by them."""

from collections.abc import Iterator

import pytest

from ringbuf import WakeupThread
from tests.support.brim_process import BrimProcess


@pytest.fixture(autouse=True)
def _wakeup() -> Iterator[None]:
    yield
    WakeupThread.of_process().close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrimProcess]:
    """One for all tests of a file: a start takes longer than most of them."""
    directory = tmp_path_factory.mktemp("broker")
    with BrimProcess(directory / "run", directory, bridge=False) as process:
        yield process
