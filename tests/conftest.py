"""Fixtures of every test: temporary directories, and a guard against leaks.

No test touches the user's own broker: the directories that Brim takes from the environment are the test run's
own.  Tests for which this machine lacks something are skipped, and the reason says what to install.
"""

import gc
import importlib.util
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import zmq
from hypothesis import settings

from ringbuf import WakeupThread
from tests.support.brim_process import BrimProcess
from tests.support.directories import memory_directory
from tests.support.leaks import Holdings, left_since
from tests.support.mqtt_bench import Bench
from tests.support.project import dev
from tests.support.spark_session import first_spark, pytest_runtest_makereport, spark

__all__ = ["first_spark", "pytest_runtest_makereport", "spark"]

# Bytecode is kept even where the environment refuses it: otherwise each of a thousand processes compiles all
# of Brim again, and pytest rewrites every test file again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("brim", deadline=None, print_blob=True)  # a busy machine is no failure
settings.load_profile("brim")

# Tests that a shell runs with "&" ignore Ctrl-C, and with them every process of a test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def own_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Brim started without arguments, by a test or by a process of one, stays inside the test run."""
    with memory_directory() as runtime, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNTIME_DIRECTORY", str(runtime))
        patch.setenv("STATE_DIRECTORY", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def pyzmq_collector() -> None:
    """The thread of pyzmq that frees frames sent without a copy: it starts once, and stays."""
    zmq.Frame(b"x", copy=False)


@pytest.fixture(scope="session", autouse=True)
def obstore_runtime() -> None:
    """obstore's threads and their descriptors stay until the process ends: they start before any test."""
    if importlib.util.find_spec("obstore"):
        import obstore

        obstore.put(obstore.store.MemoryStore(), "name", b"")


@pytest.fixture
def bench() -> Iterator[Bench]:
    """An engine and a broker without sockets, with the default limits."""
    with Bench() as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_leaks(own_directories: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """A test fails that leaves a descriptor, a thread, a child process or a file in shared memory behind.

    Descriptors and threads of tests with Spark do not count: its gateway keeps its sockets for later.
    """
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark")  # it stays for later tests
    before = Holdings.now()
    yield
    left = left_since(before, only_outside=request.node.get_closest_marker("java") is not None)
    assert not left, "the test left behind:\n  " + "\n  ".join(left)


@pytest.fixture(autouse=True)
def environment_stays() -> Iterator[None]:
    """Undo changes of the environment by a test, or by Spark that it started."""
    before = dict(os.environ)
    yield
    if before != dict(os.environ):
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(autouse=True)
def log_stays() -> Iterator[None]:
    """Level and outputs that a command of `brim` sets for the log, run within a test, end with the test."""
    root = logging.getLogger()
    level, outputs = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = outputs


@pytest.fixture
def runtime_directory() -> Iterator[Path]:
    """A new runtime directory on tmpfs, for this test alone."""
    with memory_directory() as path:
        yield path


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> Iterator[BrimProcess]:
    """`brim run` as a process with the default settings, for this test alone."""
    with BrimProcess(runtime_directory, tmp_path, bridge=False) as process:
        yield process


@pytest.fixture
def wakeup_ends() -> Iterator[None]:
    """End the thread of shared-memory wake-ups with the test that started it."""
    yield
    WakeupThread.of_process().close()


# Files with the longest tests: they begin first, so that the processes end at about the same time.
# Queries of `brim sql` and `brim schema` yield to all other work, so they are long next to it.
LONG = (
    "tests/ringbuf/test_sanitizers.py", "tests/test_wheel.py", "tests/edge/cli/test_sql.py",
    "tests/edge/web/test_sql_api.py", "tests/edge/cli/test_schema.py", "tests/faults/", "tests/simulation/",
    "tests/examples/", "tests/conformance/", "tests/test_docs_run.py", "tests/test_docs_site.py",
    "tests/test_dev.py",
)  # fmt: skip


def pytest_collectstart() -> None:
    """Search for no garbage until all tests are collected: it takes a sixth of the time and finds little."""
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with Spark come last: its threads, and what it sets for its workers, stay in the process.

    The file that ends Java is the last of them: a new Java loads and compiles all classes again.
    """

    def place(item: pytest.Item) -> int:
        if item.get_closest_marker("java"):
            return len(LONG) + (2 if item.nodeid.startswith("tests/bridge/spark/test_session.py") else 1)
        return next((at for at, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: the search for garbage after each test passes them over."""
    gc.enable()
    gc.collect()
    gc.freeze()


@cache
def has_java() -> bool:
    """True if Spark can run; to find that out, Java starts."""
    return dev.find_java() is not None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine cannot run."""
    if item.get_closest_marker("java"):
        if not has_java():
            pytest.skip(f"needs Java 17 or newer: apt-get install {dev.java_package()}")
        if importlib.util.find_spec("pyspark") is None:
            pytest.skip("needs the spark extra: pip install 'brim[spark]'")
    if item.get_closest_marker("mosquitto") and not shutil.which("mosquitto_pub"):
        pytest.skip("needs mosquitto_pub and mosquitto_sub: apt-get install mosquitto-clients")
