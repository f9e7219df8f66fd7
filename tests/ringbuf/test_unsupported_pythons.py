"""Interpreters in which the C core does not work: import and build name the cause."""

import subprocess
import sys

import pytest

from tests.support.project import ROOT

FREE_THREADED = (
    "import sys, sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1; "
    "sys.abiflags, sys.modules['ringbuf._ringbuf'] = 't', None"
)
ISOLATED = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
{first}
print(interpreters.run_string(interpreters.create(), '''
try:
    from ringbuf import Ring
    print("imported")
except ImportError as error:
    print(error)
'''))
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "first", ["", "from ringbuf import Ring"], ids=["the first to import it", "a later one"]
)
def test_a_sub_interpreter_is_refused_by_name(first: str) -> None:
    done = python(ISOLATED.format(first=first))
    if "_xxsubinterpreters'" in done.stderr:
        pytest.skip("this Python has no module for interpreters")
    assert done.returncode == 0, done.stderr
    assert "sub-interpreter" in done.stdout
    assert "use threads or processes" in done.stdout


def test_a_free_threaded_python_is_refused_by_name_at_the_import() -> None:
    """It does not look for abi3 modules at all, so that the core seems not to be there."""
    done = python(f"{FREE_THREADED}; import edge.consumers.client")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "free-threaded" in last
    assert "use a regular build of Python" in last
    assert "build.py" not in last, "that would not help"


@pytest.mark.parametrize("how", ["build.main()", "hook()"])
def test_a_free_threaded_python_is_refused_by_name_at_the_build(how: str) -> None:
    hook = "hook = lambda: build.BuildHook.initialize(object(), 'editable', {})"
    code = f"{FREE_THREADED}; sys.argv = ['build.py', '--into', '/nowhere']; import build; {hook}; {how}"
    done = python(code)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "free-threaded" in last
    assert "use a regular build of Python" in last


def test_a_core_that_is_there_and_does_not_load_is_named_with_its_cause() -> None:
    code = """
import sys, importlib.abc
class Broken(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "ringbuf._ringbuf":
            raise ImportError("libc is too old")
sys.meta_path.insert(0, Broken())
from ringbuf import Ring
"""
    done = python(code)
    assert done.returncode == 1
    assert "libc is too old" in done.stderr.splitlines()[-1]
