"""Imports of `brim run`: no module that the broker does not use, and none is missing where it is used."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import ROOT

# Modules that libraries import in case they are needed. typing_extensions is in the environment of the tests.
UNUSED = ["ssl", "typing_extensions"]
if sys.version_info < (3, 14):  # asyncio has dataclasses since
    UNUSED += ["ast", "copy", "dataclasses", "dis", "inspect"]

RUN = """
import atexit, sys
atexit.register(lambda: print(*sys.modules))
from edge.cli import main
sys.exit(main(sys.argv[1:]))
"""

FAILED_CALLBACK = """
import sys
from edge.cli.light_imports import import_asyncio
import_asyncio(with_tls=True)
import asyncio, ssl
assert "inspect" not in sys.modules or sys.version_info >= (3, 14)
assert asyncio.sslproto.ssl is ssl

class NoDescriptors:
    def find_spec(self, name, *_):
        if name == "inspect":
            raise OSError(24, "Too many open files")

def failing():
    raise ValueError("an error of the test")

async def main():
    if "disk" in sys.argv:
        sys.meta_path.clear()
    if "descriptors" in sys.argv:
        sys.meta_path.insert(0, NoDescriptors())
    asyncio.get_running_loop().call_soon(failing)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    print("the loop runs")

asyncio.run(main())
import inspect
assert inspect.isfunction(failing)
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_a_broker_does_not_import_what_its_libraries_need_in_rare_cases(
    runtime_directory: Path, tmp_path: Path
) -> None:
    options = ["--port", "0", "--runtime-dir", runtime_directory, "--state-dir", tmp_path / "state"]
    command = [sys.executable, "-u", "-c", RUN, "run", *map(str, options)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        assert "is ready after" in broker.stdout.readline()
        broker.terminate()
        loaded = set(broker.stdout.read().split())
    assert {"asyncio", "msgspec"} <= loaded
    assert loaded.intersection(UNUSED) == set()


def test_a_module_that_is_imported_or_used_meanwhile_is_the_real_one() -> None:
    run = python("""
import sys, ssl
from edge.cli.light_imports import _AtFirstUse, _replaced
with _replaced({"ssl": None, "dis": _AtFirstUse("dis"), "inspect": _AtFirstUse("inspect")}):
    assert sys.modules["ssl"] is ssl
    import dis, inspect
    assert inspect.isfunction(len) is False
assert sys.modules["ssl"] is ssl
assert type(sys.modules["inspect"]) is type(sys)
assert "dis" not in sys.modules or type(sys.modules["dis"]) is type(sys)
print("passed")
""")
    assert run.stdout == "passed\n", run.stderr


def test_asyncio_names_a_failed_callback_by_a_module_that_it_imports_then() -> None:
    run = python(FAILED_CALLBACK)
    assert run.stdout == "the loop runs\n", run.stderr
    assert "an error of the test" in run.stderr
    assert "failing() at <string>" in run.stderr
    assert run.returncode == 0


@pytest.mark.parametrize("lack", ["disk", "descriptors"])
def test_a_failed_callback_does_not_end_the_event_loop_if_that_module_cannot_be_imported(lack: str) -> None:
    run = python(FAILED_CALLBACK, lack)
    assert run.stdout == "the loop runs\n", run.stderr
    assert "an error of the test" in run.stderr
