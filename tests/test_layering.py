"""Imports point one way, and only the outermost C makes system calls.  ARCHITECTURE.md draws the layers."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.house import PACKAGES, ROOT

# Longest prefix wins.  A layer may import itself, what stands here, and the standard library.
MAY_IMPORT = {
    "brim": {"edge", "ringbuf"},  # and no package imports brim
    "ringbuf": {"cffi"},
    "persistence": {"ringbuf", "msgpack"},
    "bridge": {"persistence", "ringbuf", "edge.mqtt", "msgpack", "bridge.sinks"},
    "bridge.sinks": {"bridge", "persistence", "ringbuf", "edge.mqtt"},
    "bridge.sinks.mqtt_link": {"bridge", "edge.client", "edge.mqtt"},
    "bridge.sinks.mqtt": {"bridge", "ringbuf", "edge.client", "edge.mqtt", "bridge.sinks"},
    "bridge.sinks.mqtt_commands": {"bridge", "edge.client", "edge.mqtt", "bridge.sinks"},
    "bridge.sinks.parquet": {"bridge", "bridge.spark", "pyarrow"},
    "bridge.sinks.kafka_client": {"bridge", "ringbuf", "cffi", "confluent_kafka"},
    "bridge.sinks.kafka": {"bridge", "ringbuf", "bridge.sinks.kafka_client"},
    "bridge.sinks.lease": {"bridge", "obstore"},
    "bridge.sinks.objects": {"bridge", "bridge.sinks.lease", "obstore"},
    "bridge.spark": {
        *("bridge.drained", "bridge.errors", "bridge.parquet_footer", "bridge.rangeset"),
        *("bridge.spark.formats", "bridge.spark.tables", "ringbuf"),
        *("msgpack", "numpy", "pyarrow", "py4j", "pyspark"),
    },
    "bridge.spark.formats": {"bridge.errors", "cbor2", "google"},
    "bridge.spark.tables": {"bridge.errors", "bridge.spark", "deltalake", "pyarrow", "pyspark"},
    "edge.mqtt": set(),
    "edge.client": {"edge.mqtt", "edge.errors", "edge.logs", "edge.waiting"},
    "edge": {"edge.mqtt", "persistence", "ringbuf", "msgpack", "msgspec", "pyroaring", "websockets", "zmq"},
    "edge.auth": {"edge", "edge.auth.amqtt_plugins", "edge.mqtt", "argon2"},
    "edge.auth.amqtt_plugins": {"edge", "edge.auth", "amqtt", "dacite"},
    "edge.cli": {"edge", "bridge", "persistence", "ringbuf", "msgpack", "msgspec", "rich", "zmq"},
    "edge.__main__": {"edge.cli"},
}

# The engine is told the time and handed the bytes: it can be run through a century in a test.
NOT_IN_THE_ENGINE = {
    "asyncio", "logging", "os", "selectors", "socket", "ssl", "subprocess", "threading", "time",
}  # fmt: skip

# Too heavy for whoever only wants to start the broker: loaded by what needs them, when it needs them.
LOADED_LATE = {
    "amqtt", "argon2", "backports", "confluent_kafka", "deltalake", "matplotlib", "numpy", "obstore", "paho",
    "psutil", "pyarrow", "pyspark", "rich", "typer",
}  # fmt: skip

SYSTEM_HEADERS = re.compile(
    r"#include <(unistd|fcntl|linux/\w+|sys/(epoll|eventfd|ioctl|mman|socket|syscall|uio))\.h>"
)
MAKES_SYSTEM_CALLS = {
    "wait.c",
    "fault.c",
    "disk.c",
    "direct.c",
    "loop.c",
    "watch.c",
    "spill_file.c",
    "load_loop.c",
    "load_sink.c",
    "gate.c",
}


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


NAMES = {name for name, _ in modules()}


def layer(name: str) -> str | None:
    return max((key for key in MAY_IMPORT if f"{name}.".startswith(f"{key}.")), key=len, default=None)


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All of the tree but what only a type checker runs of typing_extensions: it is no dependency."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from (node for node in child.body if "typing_extensions" not in ast.unparse(node))
        else:
            yield child
            yield from nodes(child)


def imports(name: str, path: Path) -> Iterator[tuple[str, int]]:
    """Each module that the file imports, anywhere in it, and the line; `from a import b` may mean a.b."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield inner if inner in NAMES else source, node.lineno


def offences(name: str, path: Path) -> Iterator[str]:
    mine = layer(name)
    assert mine is not None
    for target, line in imports(name, path):
        where = f"{path.relative_to(ROOT)}:{line}"
        top = target.partition(".")[0]
        if mine == "edge.mqtt" and top in NOT_IN_THE_ENGINE:
            yield f"{where}: the protocol engine does no I/O and reads no clock, so no {target}"
        if top in sys.stdlib_module_names or layer(target) == mine:
            continue
        if not any(f"{target}.".startswith(f"{allowed}.") for allowed in MAY_IMPORT[mine]):
            yield f"{where}: {mine} may not import {target}"


@pytest.mark.parametrize(("name", "path"), [pytest.param(*module, id=module[0]) for module in modules()])
def test_imports_point_one_way(name: str, path: Path) -> None:
    assert list(offences(name, path)) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ringbuf.ring", "import persistence"),
        ("persistence.log", "from edge import mqtt"),
        ("edge.mqtt.packets", "import zmq"),
        ("edge.mqtt.packets", "import socket"),
        ("edge.stats", "from . import cli"),
        ("edge.stats", "if TYPE_CHECKING:\n    from edge.cli import main"),
        ("ringbuf.record", "from typing_extensions import Buffer"),
        ("bridge.drain", "def later():\n    import bridge.spark"),
    ],
)
def test_an_import_that_points_the_other_way_is_found(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "NAMES", {"edge.mqtt", "edge.cli", "bridge.spark"})
    assert len(list(offences(name, path))) == 1


def test_starting_the_broker_loads_nothing_that_it_does_not_need() -> None:
    """A sink and the Spark source are loaded by who uses them; all else must be light."""
    late = ("bridge.spark", "bridge.sinks.", "brim.__main__", "edge.__main__", "edge.auth.amqtt_plugins")
    names = [name for name in sorted(NAMES) if not name.startswith(late)]
    code = f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    loaded = {name.partition(".")[0] for name in run.stdout.split()}
    assert loaded & LOADED_LATE == set()
    assert set(PACKAGES) <= loaded


def test_only_the_outermost_c_makes_system_calls() -> None:
    callers = {
        path.name
        for path in sorted((ROOT / "ringbuf" / "c").rglob("*.[ch]"))
        if SYSTEM_HEADERS.search(path.read_text())
    }
    assert callers <= MAKES_SYSTEM_CALLS
    assert "wait.c" in callers  # Else the pattern sees nothing.
