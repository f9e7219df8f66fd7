"""Compile the C core into one module, ringbuf/_ringbuf.abi3.so.

    python build.py              into the checkout: ringbuf/_ringbuf.abi3.so, and the bytecode of all modules
    python build.py --into DIR   into another folder
    pip install .                into the wheel, through BuildHook
    pip install -e .             into the checkout, through BuildHook

The module consists of every .c file below ringbuf/c, and the bindings that cffi writes for the declarations
of their *_api.h. Such a header is read twice: by cffi's cdef(), and by the compiler through the one header
that includes it, its owner. So a declaration and its definition are always equal.

CC, CFLAGS and LDFLAGS are honoured. _PYTHON_HOST_PLATFORM, which sysconfig reads, names another machine to
compile for: then the module is not loaded, and the wheel is for that machine. `--sanitize address,undefined`
adds the flags of a sanitizer build.

Invariants: objects live in build/<digest of the flags>/ and are named by the digest of their parts, so an
object is either right or absent. The module is replaced in one step: a running process keeps the old one, and
the next process finds a whole one. The module carries the digest of its parts as its build id, by which the
next run detects that there is nothing to do.
"""

import argparse
import compileall
import contextlib
import fcntl
import hashlib
import importlib.metadata
import io
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
C = ROOT / "ringbuf" / "c"
OBJECTS = ROOT / "build"
PACKAGES = ("brim", "edge", "bridge", "persistence", "ringbuf")
MODULE = "ringbuf._ringbuf"
SHARED_OBJECT = "_ringbuf.abi3.so"
OLDEST_PYTHON = (3, 11)  # as requires-python: tomllib, TaskGroup

STANDARD = "-std=c11 -O2 -g -fPIC -fvisibility=hidden -pthread -Wall -Wextra -D_GNU_SOURCE"
SANITIZED = "-O1 -fno-omit-frame-pointer -fno-sanitize-recover=undefined"
LOAD = """
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.ExtensionFileLoader(*sys.argv[1:])
importlib.util.module_from_spec(importlib.util.spec_from_loader(sys.argv[1], loader))
"""
DIGEST_BYTES = 16  # 128 bits: the length of a build id, enough to exclude collisions


class BuildError(Exception):
    """The module cannot be built; the message has the reason and the remedy."""


@dataclass(frozen=True)
class Toolchain:
    """Compiler and flags, and the folder of their objects."""

    compile: tuple[str, ...]
    link: tuple[str, ...]
    objects: Path

    @classmethod
    def of_environment(
        cls, *, sanitize: str = "", strict: bool = False, objects: Path = OBJECTS
    ) -> "Toolchain":
        """The toolchain by CC, CFLAGS and LDFLAGS.

        `sanitize` is a comma-separated list for -fsanitize; `strict` makes every warning an error.
        """
        include = Path(sysconfig.get_path("include"))
        if not (include / "Python.h").is_file():
            raise BuildError(f"no Python.h in {include}; on Debian: apt-get install python3-dev")
        compiler = shlex.split(os.environ.get("CC") or "cc")
        sanitizer = [f"-fsanitize={sanitize}", *SANITIZED.split()] if sanitize else []
        compile_flags = [
            *STANDARD.split(),
            "-DPy_LIMITED_API=0x{:02X}{:02X}0000".format(*OLDEST_PYTHON),
            f"-I{C}",
            f"-I{include}",
            *sanitizer,
            *(["-Werror"] if strict else []),
            *shlex.split(os.environ.get("CFLAGS", "")),
        ]
        link_flags = ["-shared", "-pthread", *sanitizer[:1], *shlex.split(os.environ.get("LDFLAGS", ""))]
        command = (*compiler, *compile_flags, "-c")
        return cls(command, (*compiler, *link_flags), objects / digest(*command)[:16])


@dataclass(frozen=True)
class Unit:
    """One object file of the module: its C source, and the digest of all its inputs."""

    source: Path
    made_of: str

    @property
    def name(self) -> str:
        """Name of the source with its folder below ringbuf/c: two folders may have files of one name."""
        path = self.source.relative_to(C) if self.source.is_relative_to(C) else Path(self.source.name)
        return "-".join(path.with_suffix("").parts)

    def object(self, toolchain: Toolchain) -> Path:
        """Path of its object file."""
        return toolchain.objects / f"{self.name}-{self.made_of}.o"


def digest(*parts: str | bytes) -> str:
    """Name for these parts in this order, in hexadecimal."""
    whole = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "little") + data)
    return whole.hexdigest()


def api_headers() -> list[Path]:
    """The *_api.h in the order for cdef(): first those of the ring, whose types the others use."""
    return sorted(C.rglob("*_api.h"), key=lambda path: (path.name != "ringbuf_api.h", path))


def owner(api: Path) -> Path:
    """The one header that includes `api` for the compiler."""
    line = f'#include "{api.relative_to(C)}"'
    owners = [path for path in sorted(C.rglob("*.h")) if line in path.read_text().splitlines()]
    if len(owners) != 1:
        found = ", ".join(path.name for path in owners) or "none"
        raise BuildError(f"{api.name} must be included by exactly one header of its part; found: {found}")
    return owners[0]


def write_bindings(target: Path) -> None:
    """Write the C of the Python module to `target`, by cffi."""
    from cffi import FFI

    ffi = FFI()
    for api in api_headers():
        ffi.cdef(api.read_text())
    ffi.set_source(MODULE, "\n".join(f'#include "{owner(api).relative_to(C)}"' for api in api_headers()))
    partial = target.with_suffix(f".{os.getpid()}.tmp")
    with contextlib.redirect_stdout(io.StringIO()):  # it prints the name of its temporary file
        ffi.emit_c_code(str(partial))
    partial.replace(target)


def units(toolchain: Toolchain) -> Iterator[Unit]:
    """Every object of the module, the bindings last. Their source is written if their object is missing."""
    headers: list[str | bytes] = []
    for path in sorted(C.rglob("*.h")):
        headers += [str(path.relative_to(C)), path.read_bytes()]
    for source in sorted(C.rglob("*.c")):
        yield Unit(source, digest(source.read_bytes(), *headers))
    bound = digest(Path(__file__).read_bytes(), importlib.metadata.version("cffi"), *headers)
    yield Unit(toolchain.objects / "_ringbuf.c", bound)


def run(command: Sequence[str], what: str) -> None:
    """Run a compiler; its own output goes to the terminal."""
    try:
        status = subprocess.run(command, check=False).returncode
    except FileNotFoundError:
        raise BuildError(f"no C compiler {command[0]!r}; on Debian: apt-get install gcc libc6-dev") from None
    if status:
        raise BuildError(f"{what} failed with status {status}: {shlex.join(command)}")


def compile_unit(unit: Unit, toolchain: Toolchain) -> None:
    """Compile the object of `unit`, and remove the objects of earlier states of its source."""
    target = unit.object(toolchain)
    partial = target.with_suffix(f".{os.getpid()}.tmp")
    run([*toolchain.compile, str(unit.source), "-o", str(partial)], f"compiling {unit.source.name}")
    for stale in toolchain.objects.glob(f"{unit.name}-{'?' * 2 * DIGEST_BYTES}.o"):
        stale.unlink(missing_ok=True)
    partial.replace(target)


def link(objects: Sequence[Path], toolchain: Toolchain, target: Path, build_id: str) -> None:
    """Put the module at `target`, in one step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        command = [*toolchain.link, *map(str, objects), f"-Wl,--build-id=0x{build_id}", "-o", str(partial)]
        run(command, f"linking {target.name}")
        is_sanitized = any(flag.startswith("-fsanitize") for flag in command)  # loads only with its runtime
        if not is_sanitized and "_PYTHON_HOST_PLATFORM" not in os.environ:
            check_loads(partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def check_loads(path: Path) -> None:
    """Check that Python can load the module: a linker accepts declarations without a definition."""
    command = [sys.executable, "-c", LOAD, MODULE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2].replace(str(path), path.name)
        raise BuildError(f"the module was linked but does not load: {reason}")


def compile_into(directory: Path, toolchain: Toolchain) -> tuple[Path, bool]:
    """The module as `directory`/_ringbuf.abi3.so, and True if it had to be built."""
    target = directory / SHARED_OBJECT
    parts = list(units(toolchain))
    build_id = digest(*toolchain.compile, *toolchain.link, *(unit.made_of for unit in parts))
    if target.is_file() and bytes.fromhex(build_id) in target.read_bytes():
        return target, False
    toolchain.objects.mkdir(parents=True, exist_ok=True)
    # Two builds at once would remove each other's objects.
    with open(toolchain.objects / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [unit for unit in parts if not unit.object(toolchain).is_file()]
        if parts[-1] in missing:
            write_bindings(parts[-1].source)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda unit: compile_unit(unit, toolchain), missing))
        link([unit.object(toolchain) for unit in parts], toolchain, target, build_id)
    return target, True


if __name__ != "__main__":  # `python build.py` needs no hatchling; only hatchling imports this file
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class BuildHook(BuildHookInterface[Any]):
        """Called by hatchling around each wheel; [tool.hatch.build.targets.wheel.hooks.custom]."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Compile, and state for which Pythons and machines the wheel is.

            `version` is "editable" for `pip install -e`: then the module goes into the checkout.
            """
            require_gil()
            if version == "editable":
                compile_into(ROOT / "ringbuf", Toolchain.of_environment())
            else:
                self.scratch = tempfile.TemporaryDirectory(prefix="brim-build-")
                toolchain = Toolchain.of_environment(objects=Path(self.scratch.name))
                built, _ = compile_into(Path(self.scratch.name), toolchain)
                build_data["force_include"][str(built)] = f"ringbuf/{SHARED_OBJECT}"
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = "cp{}{}-abi3-{}".format(*OLDEST_PYTHON, platform)
            build_data["pure_python"] = False

        def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
            """Remove the files of initialize(): the wheel has its copy."""
            if hasattr(self, "scratch"):
                self.scratch.cleanup()


def require_gil() -> None:
    """Refuse a free-threaded Python, which would compile the module and then fail to load it."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        version = "{}.{}".format(*sys.version_info)
        raise BuildError(
            f"this Python {version} is a free-threaded build (without the GIL); Brim's C core relies on the "
            "GIL and on the stable ABI (abi3), which such builds do not load; "
            f"use a regular build of Python {version}"
        )


def compile_bytecode(root: Path) -> None:
    """Write the bytecode of changed modules, as pip does for a wheel: a start then compiles none."""
    for name in PACKAGES:
        compileall.compile_dir(root / name, quiet=2)


def main() -> None:
    """The command `python build.py`."""
    parser = argparse.ArgumentParser(description="Compile the C core of Brim.")
    parser.add_argument("--into", type=Path, default=ROOT / "ringbuf", metavar="DIR", help="where it goes")
    parser.add_argument("--sanitize", default="", metavar="LIST", help="of address, undefined, thread")
    parser.add_argument("--strict", action="store_true", help="warnings are errors")
    options = parser.parse_args()
    try:
        require_gil()
        toolchain = Toolchain.of_environment(sanitize=options.sanitize, strict=options.strict)
        target, built = compile_into(options.into, toolchain)
        if options.into == ROOT / "ringbuf":
            compile_bytecode(ROOT)
    except BuildError as error:
        sys.exit(f"build.py: {error}")
    print(target if built else f"{target} is up to date")


if __name__ == "__main__":
    if globals()["__spec__"] is not None:  # `python -m build` means PyPA's build, which this file shadows
        if sys.flags.isolated:  # in an editable installation this file would be found again
            sys.exit("No module named build; PyPA's is installed by: pip install build")
        os.execv(sys.executable, [sys.executable, "-I", "-m", "build", *sys.argv[1:]])
    main()
