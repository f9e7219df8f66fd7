"""build.py compiles what changed, all of it and nothing more, and says what is wrong where something is.

Each test works on a small project of its own, with its own build.py, as in the real one.
"""

import os
import shutil
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from tests.support.project import ROOT

API = "int twice(int number);\nenum { LIMIT = 7 };\n"
HEADER = '#ifndef OWNER_H\n#define OWNER_H\n#include "ringbuf_api.h"\n#endif\n'
ONE = '#include "owner.h"\nint twice(int number)\n{\n    return 2 * number;\n}\n'
TWO = "#include <Python.h>\nint unused_here = PY_VERSION_HEX;\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with a C core of two sources."""
    c = tmp_path / "ringbuf" / "c"
    c.mkdir(parents=True)
    (tmp_path / "ringbuf" / "__init__.py").touch()  # else the one that is installed comes first
    shutil.copy(ROOT / "build.py", tmp_path)
    for name, text in {"ringbuf_api.h": API, "owner.h": HEADER, "one.c": ONE, "two.c": TWO}.items():
        (c / name).write_text(text)
    return tmp_path


def python(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: a module once loaded would stay."""
    clean = {name: value for name, value in os.environ.items() if name not in {"CC", "CFLAGS", "LDFLAGS"}}
    environment = {**clean, **environment}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def build(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return python(project, "build.py", *arguments, **environment)


def built(project: Path) -> set[Path]:
    """The object files that are there."""
    return set((project / "build").rglob("*.o"))


def test_without_the_core_the_command_that_makes_it_is_named(tmp_path: Path) -> None:
    leave = shutil.ignore_patterns("*.so", "__pycache__", "c")
    shutil.copytree(ROOT / "ringbuf", tmp_path / "ringbuf", ignore=leave)
    run = python(tmp_path, "-c", "from ringbuf import Ring")
    assert run.returncode == 1
    assert "`python build.py`" in run.stderr.splitlines()[-1]


def ask(project: Path, expression: str) -> str:
    """Value of an expression in the compiled module."""
    run = python(project, "-c", f"from ringbuf._ringbuf import lib; print({expression})")
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def module(project: Path) -> Path:
    return project / "ringbuf" / "_ringbuf.abi3.so"


def identity(project: Path) -> tuple[int, int]:
    """Which file the module is: another build puts another one there."""
    facts = module(project).stat()
    return facts.st_ino, facts.st_mtime_ns


def test_what_the_headers_declare_can_be_called_from_python(project: Path) -> None:
    assert build(project).returncode == 0
    assert ask(project, "lib.twice(21), lib.LIMIT") == "42 7"


def test_a_build_writes_the_bytecode_of_modules_that_have_changed(project: Path) -> None:
    source = project / "edge" / "cli.py"
    source.parent.mkdir()
    source.write_text("value = 1\n")
    build(project)
    bytecode = Path(cache_from_source(str(source)))
    first = bytecode.read_bytes()
    source.write_text("value = 1000\n")
    os.utime(source, (1, 1))  # bytecode has the time of its source, in whole seconds
    build(project)
    assert bytecode.read_bytes() != first


def test_a_second_build_does_nothing(project: Path) -> None:
    build(project)
    before = identity(project)
    assert "up to date" in build(project).stdout
    assert identity(project) == before


def test_a_changed_source_recompiles_that_source_alone(project: Path) -> None:
    build(project)
    before = built(project)
    (project / "ringbuf" / "c" / "one.c").write_text(ONE.replace("2 *", "3 *"))
    build(project)
    assert [path.name.partition("-")[0] for path in built(project) - before] == ["one"]
    assert len(built(project)) == len(before)  # The object of the old source is gone.
    assert ask(project, "lib.twice(10)") == "30"


def test_a_changed_header_recompiles_everything(project: Path) -> None:
    build(project)
    before = built(project)
    (project / "ringbuf" / "c" / "ringbuf_api.h").write_text(API.replace("7", "8"))
    build(project)
    assert built(project).isdisjoint(before)
    assert ask(project, "lib.LIMIT") == "8"


def test_a_touched_file_with_the_same_bytes_recompiles_nothing(project: Path) -> None:
    build(project)
    for path in (project / "ringbuf" / "c").iterdir():
        path.write_bytes(path.read_bytes())
    assert "up to date" in build(project).stdout


def test_other_flags_get_objects_of_their_own(project: Path) -> None:
    build(project)
    before = built(project)
    assert build(project, CFLAGS="-DOTHER=1").returncode == 0
    assert before < built(project)
    assert "up to date" not in build(project).stdout  # The module there is the other one.


def test_a_sanitizer_build_finds_an_overflow(project: Path) -> None:
    assert build(project, "--sanitize", "undefined").returncode == 0
    run = python(project, "-c", "from ringbuf._ringbuf import lib; lib.twice(2**30)")
    assert run.returncode != 0
    assert "signed integer overflow" in run.stderr


def test_a_definition_that_differs_from_its_declaration_is_refused(project: Path) -> None:
    (project / "ringbuf" / "c" / "one.c").write_text(ONE.replace("int number", "long number"))
    run = build(project)
    assert run.returncode == 1
    assert "conflicting types" in run.stderr
    assert not module(project).exists()


def test_a_failed_build_leaves_the_old_module(project: Path) -> None:
    build(project)
    before = identity(project)
    (project / "ringbuf" / "c" / "one.c").write_text("this is not C")
    run = build(project)
    assert run.returncode == 1
    assert "compiling one.c failed" in run.stderr
    assert identity(project) == before


def test_a_declaration_that_nothing_defines_fails_the_build_and_not_the_import(project: Path) -> None:
    build(project)
    before = identity(project)
    (project / "ringbuf" / "c" / "ringbuf_api.h").write_text(API + "int nowhere(void);\n")
    run = build(project)
    assert run.returncode == 1
    assert "undefined symbol: nowhere" in run.stderr
    assert identity(project) == before


def test_an_api_header_that_the_compiler_never_reads_is_refused(project: Path) -> None:
    (project / "ringbuf" / "c" / "orphan_api.h").write_text("int orphan(void);\n")
    run = build(project)
    assert run.returncode == 1
    assert "orphan_api.h must be included by exactly one header" in run.stderr


def test_a_warning_is_an_error_only_when_asked(project: Path) -> None:
    (project / "ringbuf" / "c" / "two.c").write_text("static int never_called(void) { return 1; }\n")
    assert build(project).returncode == 0
    assert build(project, "--strict", "--into", "strict").returncode == 1


def test_a_missing_compiler_is_named_with_the_line_that_installs_one(project: Path) -> None:
    run = build(project, CC="no-such-compiler")
    assert run.returncode == 1
    assert "apt-get install gcc" in run.stderr
    assert "Traceback" not in run.stderr


def test_python_m_build_is_not_ours(project: Path) -> None:
    """PyPA's tool of that name runs from this folder too, and must not find this file instead of itself."""
    run = python(project, "-m", "build", "--help")
    assert "No module named build" in run.stderr or "usage: python -m build" in run.stdout
    assert not module(project).exists()
