"""Imports point one way, and only the outermost C makes system calls.  ARCHITECTURE.md draws the layers."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.project import PACKAGES, ROOT

# The rooms of the packages, the lowest first, and the rooms and libraries that each may import, together with
# itself and the standard library. A room is a folder, or a file directly in a package; ringbuf and brim are
# one room each.
LEAVES = {
    "EDGE": "edge.errors edge.log_throttle edge.logging_setup edge.pace edge.user_names",
    "FILES": "persistence.durable_file persistence.files",
    "PERSISTENCE": "persistence.durable_file persistence.errors persistence.files "
    "persistence.free_disk_space persistence.processor_priority persistence.stats",
}
TABLE = """
ringbuf: msgspec typing_extensions
persistence.errors:
persistence.durable_file: persistence.files ringbuf
persistence.files:
persistence.free_disk_space: persistence.files
persistence.processor_priority:
persistence.stats: msgspec
persistence.segment: PERSISTENCE ringbuf msgspec
persistence.archive: PERSISTENCE persistence.segment ringbuf pyarrow
persistence.read: PERSISTENCE persistence.archive persistence.segment ringbuf
persistence.log: PERSISTENCE persistence.read persistence.segment ringbuf msgspec
persistence.maintenance: PERSISTENCE persistence.archive persistence.log persistence.segment ringbuf
persistence: PERSISTENCE persistence.log persistence.read persistence.segment
edge:
edge.errors: ringbuf
edge.log_throttle:
edge.pace:
edge.terminal_escape:
edge.logging_setup: edge.log_throttle edge.recent_lines edge.terminal_escape msgspec
edge.recent_lines:
edge.unix_socket:
edge.user_names:
edge.verb_process:
edge.waiting:
edge.rpc: EDGE msgspec
edge.mqtt: msgspec
edge.client: EDGE edge.mqtt edge.waiting msgspec
edge.config: EDGE edge.mqtt persistence.files msgspec
edge.auth: EDGE FILES edge.config edge.mqtt argon2 msgspec
edge.auth.amqtt_compat: EDGE edge.auth edge.mqtt ringbuf amqtt dacite
edge.engine: edge.mqtt ringbuf msgspec
edge.streams: EDGE FILES edge.config edge.mqtt persistence.errors ringbuf msgspec
edge.session_store: EDGE FILES edge.auth edge.engine edge.mqtt persistence.free_disk_space
    ringbuf msgspec
edge.broker: EDGE edge.auth edge.config edge.engine edge.mqtt edge.session_store
    edge.streams ringbuf msgspec
edge.recovery: EDGE FILES edge.auth edge.broker edge.config edge.engine edge.mqtt edge.session_store
    edge.streams persistence persistence.free_disk_space ringbuf msgspec
edge.transport: EDGE edge.auth edge.broker edge.config edge.engine edge.mqtt edge.unix_socket ringbuf
    msgspec websockets
edge.log: PERSISTENCE EDGE edge.broker edge.config edge.mqtt edge.streams persistence persistence.log
    persistence.maintenance persistence.read persistence.segment ringbuf
edge.delayed: EDGE edge.auth edge.broker edge.config edge.engine edge.mqtt edge.streams ringbuf msgspec
edge.backup: EDGE FILES edge.config edge.delayed edge.recovery edge.session_store edge.streams persistence
    persistence.archive persistence.read persistence.segment ringbuf msgspec
edge.local: EDGE edge.broker edge.config edge.mqtt edge.rpc edge.streams edge.terminal_escape
    edge.unix_socket edge.waiting ringbuf msgspec zmq
edge.consumers: EDGE FILES edge.auth edge.config edge.local edge.mqtt edge.rpc edge.waiting
    persistence.free_disk_space persistence.read ringbuf msgspec pyroaring zmq
edge.load: edge.errors edge.mqtt ringbuf
edge.sim: edge.client edge.config edge.errors edge.mqtt msgspec
edge.observe: EDGE edge.auth edge.broker edge.config edge.local edge.rpc edge.session_store edge.streams
    edge.terminal_escape edge.transport persistence.log persistence.stats ringbuf msgspec
bridge:
bridge.backoff:
bridge.errors:
bridge.rangeset:
bridge.format: FILES bridge.errors bridge.rangeset persistence.segment ringbuf msgspec
bridge.source: FILES bridge.errors bridge.format persistence.read ringbuf msgspec
bridge.arrow: bridge.errors bridge.format ringbuf numpy pyarrow
bridge.sinks: bridge.arrow bridge.backoff bridge.errors bridge.format bridge.payloads edge.client edge.mqtt
    FILES ringbuf cffi msgspec confluent_kafka obstore pyarrow
bridge.drain: FILES bridge.backoff bridge.errors bridge.format bridge.rangeset bridge.sinks bridge.source
    edge.errors edge.mqtt edge.rpc persistence.errors persistence.segment persistence.stats ringbuf
    msgspec
bridge.payloads: bridge.arrow bridge.errors bridge.format ringbuf cbor2 google msgpack msgspec pyarrow
bridge.spark: bridge.arrow bridge.errors bridge.format bridge.payloads bridge.rangeset ringbuf
    deltalake pyiceberg py4j pyarrow pyspark
bridge.spark.report: bridge.rangeset bridge.spark jinja2 markupsafe plotly pyspark
bridge.spark.jobs: bridge.arrow bridge.errors bridge.payloads bridge.rangeset bridge.spark
    bridge.spark.report ringbuf msgpack pyarrow pyspark
edge.sql: EDGE bridge.arrow bridge.payloads edge.broker edge.config edge.local edge.log edge.mqtt edge.streams
    edge.terminal_escape persistence.archive persistence.errors persistence.processor_priority
    persistence.segment ringbuf duckdb polars pyarrow
edge.server: PERSISTENCE EDGE bridge.drain bridge.errors bridge.format bridge.sinks bridge.source
    edge.auth edge.auth.amqtt_compat edge.broker edge.config edge.consumers edge.delayed edge.engine
    edge.local
    edge.log edge.mqtt
    edge.observe edge.recovery edge.session_store edge.streams edge.transport edge.verb_process
    persistence.maintenance ringbuf msgspec
edge.web: EDGE bridge.drain bridge.errors edge.auth edge.config edge.consumers edge.local edge.mqtt
    edge.observe edge.rpc edge.transport edge.verb_process ringbuf msgspec starlette uvicorn
edge.doctor: EDGE FILES edge.auth edge.config edge.observe edge.server edge.streams edge.transport ringbuf
edge.cli: PERSISTENCE EDGE bridge.drain bridge.errors bridge.format bridge.payloads bridge.sinks bridge.source
    edge.auth edge.auth.amqtt_compat edge.backup edge.client edge.config edge.consumers edge.doctor
    edge.load edge.local edge.log edge.mqtt edge.observe edge.server edge.sim edge.sql edge.streams
    edge.terminal_escape edge.transport edge.web persistence persistence.archive
    persistence.maintenance persistence.segment ringbuf msgspec pyarrow rich tomlkit zmq
edge.__main__: edge.cli
brim: bridge.spark edge.cli edge.client edge.consumers edge.errors edge.local edge.mqtt edge.sql ringbuf
"""


def table() -> dict[str, set[str]]:
    """Each room, and what it may import."""
    lines = TABLE.replace("\n    ", " ").strip().splitlines()
    rooms = (line.partition(":") for line in lines)
    return {
        name: {word for it in words.split() for word in LEAVES.get(it, it).split()}
        for name, _, words in rooms
    }


ROOMS = table()

# Libraries that only these modules import.
ONLY_IN = {
    "amqtt": {"edge.auth.amqtt_compat.loader"},
    "argon2": {"edge.auth.password_hash"},
    "cbor2": {"bridge.payloads.formats"},
    "confluent_kafka": {"bridge.sinks.kafka_client"},
    "dacite": {"edge.auth.amqtt_compat.loader"},
    "deltalake": {"bridge.spark.delta_log"},
    "duckdb": {"edge.sql.records", "edge.sql.result"},
    "google": {"bridge.payloads.formats"},
    "jinja2": {"bridge.spark.report.page"},
    "obstore": {"bridge.sinks.lease", "bridge.sinks.object_store"},
    "plotly": {f"bridge.spark.report.{it}" for it in ("charts", "figure_style", "offset_strips", "page")},
    "pyiceberg": {"bridge.spark.iceberg_log"},
    "starlette": {"edge.web.app"},
    "uvicorn": {"edge.web.http_server"},
    "websockets": {"edge.transport.websocket_upgrade"},
}

# The engine gets the time and the bytes as arguments: it can be run through a century in a test.
NOT_IN_THE_ENGINE = {
    "asyncio", "logging", "os", "selectors", "socket", "ssl", "subprocess", "threading", "time",
}  # fmt: skip

# Too heavy for the start of a broker: loaded by the modules that need them, at the first use.
LOADED_LATE = {
    "amqtt", "argon2", "backports", "confluent_kafka", "deltalake", "duckdb", "matplotlib", "numpy",
    "obstore", "paho", "polars", "psutil", "pyarrow", "pyiceberg", "pyspark", "rich", "starlette", "tomlkit",
    "typer", "uvicorn",
}  # fmt: skip

SYSTEM_HEADERS = re.compile(
    r"#include <(unistd|fcntl|linux/\w+|sys/(epoll|eventfd|ioctl|mman|socket|syscall|uio))\.h>"
)
MAKES_SYSTEM_CALLS = {
    "eventcount.c",
    "wait.c",
    "sigbus_guard.c",
    "buffered_io.c",
    "direct_io.c",
    "event_loop.c",
    "accept.c",
    "linger.c",
    "layer.h",
    "watchdog.c",
    "spill_file.c",
    "load_loop.c",
    "load_sink.c",
    "limiter.c",
}


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


PATHS = dict(modules())
NAMES = {*PATHS, "ringbuf._ringbuf"}


def room(name: str) -> str:
    """The room of a module; a library is its own."""
    if name not in NAMES:
        return name.partition(".")[0]
    return max((key for key in ROOMS if f"{name}.".startswith(f"{key}.")), key=len)


@cache
def imports(name: str, path: Path) -> list[tuple[str, int]]:
    """Each module that the file imports, anywhere in it, and the line; `from a import b` may mean a.b."""
    return list(_imports(name, path))


def _imports(name: str, path: Path) -> Iterator[tuple[str, int]]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield inner if inner in NAMES else source, node.lineno


def offences(name: str, path: Path) -> Iterator[str]:
    mine = room(name)
    for target, line in imports(name, path):
        where = f"{path.relative_to(ROOT)}:{line}"
        top = target.partition(".")[0]
        if mine == "edge.mqtt" and top in NOT_IN_THE_ENGINE:
            yield f"{where}: the protocol engine does no I/O and reads no clock, so no {target}"
        if top in sys.stdlib_module_names or room(target) == mine:
            continue
        if room(target) not in ROOMS[mine]:
            yield f"{where}: {mine} may not import {target}"
        elif name not in ONLY_IN.get(top, {name}):
            yield f"{where}: only {' and '.join(sorted(ONLY_IN[top]))} may import {top}"


def circles(arrows: dict[str, set[str]]) -> set[frozenset[str]]:
    """Sets of more than one name that reach each other."""
    reached: dict[str, set[str]] = {}
    for name in arrows:
        found: set[str] = set()
        todo = [name]
        while todo:
            for target in arrows.get(todo.pop(), set()) - found:
                found.add(target)
                todo.append(target)
        reached[name] = found
    rings = (frozenset(other for other in reached[name] if name in reached.get(other, ())) for name in arrows)
    return {ring for ring in rings if len(ring) > 1}


def test_imports_point_one_way() -> None:
    assert [offence for name, path in PATHS.items() for offence in offences(name, path)] == []


def test_every_room_of_the_table_exists_and_every_module_has_one() -> None:
    rooms = {room(name) for name in PATHS}
    assert rooms == set(ROOMS)
    used = {(room(name), room(target)) for name, path in PATHS.items() for target, _ in imports(name, path)}
    unused = {(mine, target) for mine, targets in ROOMS.items() for target in targets} - used
    leaves = " ".join(LEAVES.values()).split()
    assert {pair for pair in unused if pair[1] not in leaves} == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for a type checker and inside functions count, too."""
    arrows = {
        name: {target for target, _ in imports(name, path) if target in PATHS and target != name}
        for name, path in PATHS.items()
    }
    assert circles(arrows) == set()


def test_no_rooms_import_each_other_in_a_circle() -> None:
    arrows = {mine: {target for target in targets if target in ROOMS} for mine, targets in ROOMS.items()}
    assert circles(arrows) == set()


def test_the_base_of_the_c_core_includes_no_room_above_it() -> None:
    base = ROOT / "ringbuf/c/base"
    includes = {
        (path.name, included)
        for path in base.iterdir()
        for included in re.findall(r'#include "([^"]+)"', path.read_text())
    }
    assert ("utf8.c", "base/utf8.h") in includes
    assert {pair for pair in includes if not pair[1].startswith("base/")} == {("record.h", "ringbuf_api.h")}


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == {frozenset("abc")}


def entry_points() -> set[str]:
    """Modules that are loaded by name: commands, jobs and the wheel's command."""
    verbs = {name for name in PATHS if name.startswith(("edge.cli.", "bridge.spark.jobs."))}
    return {name for name in verbs if "def add_arguments" in text(name) or "main = command(" in text(name)}


@cache
def text(name: str) -> str:
    return PATHS[name].read_text()


def test_every_module_is_used() -> None:
    used = {target for name, path in PATHS.items() for target, _ in imports(name, path) if target != name}
    named = {name for name in PATHS if any(f'"{name}"' in text(other) for other in PATHS)}
    packages = {name for name, path in PATHS.items() if path.stem in ("__init__", "__main__")}
    assert set(PATHS) - used - named - packages - entry_points() == set()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ringbuf.ring", "import persistence"),
        ("persistence.log.log", "from edge import mqtt"),
        ("edge.mqtt.packets", "import zmq"),
        ("edge.mqtt.packets", "import socket"),
        ("edge.broker.counters", "from .. import cli"),
        ("edge.broker.counters", "if TYPE_CHECKING:\n    from edge.cli import main"),
        ("persistence.log.log", "from typing_extensions import Buffer"),
        ("edge.auth.acl", "import argon2"),
        ("bridge.drain.drain", "def later():\n    import bridge.spark"),
    ],
)
def test_an_import_that_points_the_other_way_is_found(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert len(list(offences(name, path))) == 1


def test_starting_the_broker_loads_nothing_that_it_does_not_need() -> None:
    """A sink and the Spark source are loaded by who uses them; all else must be light."""
    late = (
        "bridge.arrow",
        "bridge.payloads",
        "persistence.archive.columns",
        "persistence.archive.parquet",
        "bridge.spark",
        "bridge.sinks.",
        "brim.__main__",
        "edge.__main__",
        "edge.auth.amqtt_compat.loader",
        "edge.cli.config_file",
        "edge.web.",
        "edge.sql",
    )
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
    named = (
        (ROOT / "ARCHITECTURE.md")
        .read_text()
        .partition("Only these make system calls:")[2]
        .partition(".\n")[0]
    )
    assert {path.rpartition("/")[2] for path in re.findall(r"`([^`]+)`", named)} == MAKES_SYSTEM_CALLS
    assert "eventcount.c" in callers  # Otherwise the pattern finds nothing.


# Names that two classes may share, and the reason. Every other class name has one meaning.
BOTH_FORMS = {"Client", "Consumer", "PartitionReader", "ShmSubscription", "Subscription", "ZmqSubscription"}
"""Forms with and without asyncio, of which a program imports one; Subscription is also part of SUBSCRIBE."""
SETTINGS = {"Auth", "Bridge", "Listener", "Log", "Quota", "Sessions"}
"""Sections of the configuration, named as in brim.toml, and the part that the section configures."""
WIRE = {"bridge.drain.control_socket", "edge.consumers.protocol", "edge.local.protocol", "edge.rpc.protocol"}
"""Protocols. A request or answer has the name of its `op` there."""


def defined_twice(places: dict[str, Path]) -> dict[str, list[str]]:
    """Class names with the modules that define them, if there is more than one module."""
    found: dict[str, list[str]] = {}
    for name in sorted(places.keys() - WIRE):
        for node in ast.walk(ast.parse(places[name].read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(name)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def test_a_class_name_is_defined_once() -> None:
    assert defined_twice(PATHS).keys() == BOTH_FORMS | SETTINGS


def test_a_class_name_that_is_defined_twice_is_found(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text("class Window: ...")
    assert defined_twice({it: tmp_path / it for it in ("one", "two")}) == {"Window": ["one", "two"]}
