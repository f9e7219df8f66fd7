"""The package `brim`: names, pairs with equal methods, one tree of errors, and nothing loaded before use."""

import ast
import doctest
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import brim
import brim.asyncio
import brim.errors
import brim.spark
from tests.support.brim_process import BrimProcess
from tests.support.project import ROOT

MODULES = [brim, brim.asyncio, brim.errors, brim.spark]
PAIRS = ["Client", "Consumer", "MessageSubscription", "PartitionReader", "Subscription", "ZmqSubscription"]
PLAIN = {  # attributes of the blocking forms only
    "Client": {"client_id", "session_present", "reconnects"},
    "MessageSubscription": {"dropped", "filters", "qos"},
    "Subscription": {"present_batches"},
}
FUNCTIONS = ["connect", "consumer", "producer", "reader", "subscribe", "subscribe_zmq"]
LATE = {
    "asyncio", "edge.errors", "msgpack", "msgspec", "pyarrow", "pyspark", "ringbuf", "ringbuf._ringbuf",
    "ssl", "zmq",
}  # fmt: skip


def loaded(code: str) -> set[str]:
    command = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_brim_loads_neither_asyncio_nor_zmq_nor_the_c_core() -> None:
    assert not loaded("import brim, brim.asyncio, brim.errors, brim.spark") & LATE
    assert not loaded("import brim; brim.errors.BrokerUnreachable") & {"asyncio", "zmq", "ringbuf._ringbuf"}
    assert "ringbuf._ringbuf" in loaded("import brim; brim.Ring")


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_a_type_checker_sees_the_names_that_there_are_when_it_runs(module) -> None:
    """The imports under TYPE_CHECKING, the table of homes and __all__ say the same."""
    tree = ast.parse(Path(module.__file__).read_text())
    [checked] = [it for it in tree.body if isinstance(it, ast.If) and ast.unparse(it.test) == "TYPE_CHECKING"]
    imports = [it for it in checked.body if isinstance(it, ast.ImportFrom)]
    imports = [it for it in imports if it.module not in {"brim", "typing"}]
    seen = {(it.module, alias.asname or alias.name, alias.name) for it in imports for alias in it.names}
    homes = {
        (home, entry.partition("=")[0], entry.rpartition("=")[2])
        for home, entries in module._HOMES.items()
        for entry in entries
    }
    assert seen == homes
    special = {"__version__", "asyncio", "errors"} if module is brim else set()
    assert set(module.__all__) == {name for _, name, _ in homes} | special
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert brim.__version__ == project["version"]


def parameters(function) -> list[tuple[str, object]]:
    return [(it.name, it.default) for it in inspect.signature(function).parameters.values()]


def public(kind: type) -> dict[str, object]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("name", PAIRS)
def test_both_forms_of_a_class_have_equal_methods(name: str) -> None:
    blocking, waiting = public(getattr(brim, name)), public(getattr(brim.asyncio, name))
    assert blocking.keys() - PLAIN.get(name, set()) == waiting.keys()
    for method, found in waiting.items():
        if inspect.isfunction(found):
            assert parameters(found) == parameters(blocking[method]), method
    kind, other = getattr(brim, name), getattr(brim.asyncio, name)
    assert hasattr(kind, "__enter__")
    assert not hasattr(kind, "__aenter__")
    assert hasattr(other, "__aenter__")
    assert not hasattr(other, "__enter__")
    assert hasattr(kind, "__iter__") == hasattr(other, "__aiter__")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_forms_of_a_function_take_equal_arguments(name: str) -> None:
    assert parameters(getattr(brim, name)) == parameters(getattr(brim.asyncio, name))


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("InvalidArgument", ValueError),
        ("BrokerUnreachable", ConnectionError),
        ("AccessDenied", PermissionError),
        ("NoAnswer", TimeoutError),
        ("NotOpen", RuntimeError),
        ("InvalidOption", ValueError),
        ("InvalidRequest", ValueError),
        ("CannotConnect", ConnectionError),
        ("ConnectTimeout", TimeoutError),
        ("ConnectRefused", ConnectionRefusedError),
        ("ConnectionLost", ConnectionError),
        ("RecordTooLarge", ValueError),
        ("KeyTooLong", ValueError),
        ("InvalidTopic", ValueError),
        ("OffsetGone", LookupError),
    ],
)
def test_an_error_is_also_the_builtin_that_fits(name: str, builtin: type[Exception]) -> None:
    assert issubclass(getattr(brim.errors, name), builtin)


def test_errors_are_one_tree_and_the_docstring_draws_it() -> None:
    assert brim.errors.__doc__
    drawn: dict[int, str] = {}
    seen = set()
    for line in brim.errors.__doc__.split("    BrimError\n")[1].split(">>>")[0].splitlines():
        if not line.strip():
            continue
        depth = (len(line) - len(line.lstrip())) // 4
        name = line.split()[0]
        drawn[depth] = name
        parent = drawn[depth - 1] if depth > 2 else "BrimError"
        assert issubclass(getattr(brim.errors, name), getattr(brim.errors, parent)), line
        seen.add(name)
    assert seen | {"BrimError"} == set(brim.errors.__all__)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings_run(module, broker: BrimProcess) -> None:
    """With the port and the directory of a broker of the test."""
    text = module.__doc__.replace("connect()", f'connect("mqtt://127.0.0.1:{broker.port}")')
    text = text.replace('subscribe("plant/#")', f'subscribe("plant/#", runtime_dir="{broker.runtime_dir}")')
    example = doctest.DocTestParser().get_doctest(text, {}, module.__name__, None, 0)
    assert example.examples
    report: list[str] = []
    assert doctest.DocTestRunner().run(example, out=report.append).failed == 0, "".join(report)


def imports_of(code: str) -> set[str]:
    """Packages that a program imports."""
    nodes = list(ast.walk(ast.parse(code)))
    names = [alias.name for it in nodes if isinstance(it, ast.Import) for alias in it.names]
    names += [it.module for it in nodes if isinstance(it, ast.ImportFrom) and it.module]
    return {name.partition(".")[0] for name in names}


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_readme_and_tutorials_import_no_package_below_brim(page: Path) -> None:
    programs = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    imported = {package for program in programs for package in imports_of(program)}
    assert not imported & {"bridge", "edge", "persistence", "ringbuf"}
