"""C programs of the tests: sources of the core, perhaps with one line changed, and a main()."""

import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.support.house import ROOT

CORE = ROOT / "ringbuf" / "c"
RING = ("writer", "reader", "ring", "record", "crc32c", "wait", "bell", "trail")
# Of the hot path all but sockets, and what needs an interpreter.
_PLAIN = (it.stem for it in sorted((CORE / "mqtt").glob("*.c")) if not it.stem.endswith("_calls"))
MQTT = (*RING, *(f"mqtt/{stem}" for stem in _PLAIN if stem != "loop"))
SCAN = ("record", "crc32c", *(f"scan/{it.stem}" for it in sorted((CORE / "scan").glob("*.c"))))
UNPACK = ("unpack", "mqtt/utf8")
FLAGS = ("-std=c11", "-g", "-pthread", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror")
_OBJECTS = tempfile.TemporaryDirectory(prefix="brim-test-objects-")


def compiler_or_skip(command: str = "", package: str = "gcc") -> list[str]:
    """The compiler as a command; the test is skipped, with the remedy, where there is none."""
    found = shlex.split(command or os.environ.get("CC") or "cc")
    if shutil.which(found[0]) is None:
        pytest.skip(f"no {found[0]}: apt-get install {package}")
    return found


def only_on_x86_64() -> None:
    """Skip where breakpoints and program counters are other ones."""
    if platform.machine() != "x86_64":
        pytest.skip(f"written for x86-64, this is {platform.machine()}")


def compiled(
    directory: Path,
    main: Path,
    *flags: str,
    compiler: Sequence[str] = (),
    sources: Sequence[str] = RING,
    planted: Mapping[str, Sequence[tuple[str, str]]] | None = None,
) -> Path:
    """The program of `main` and `sources` (RING or MQTT), in `directory`.

    `planted`: for one of the sources, texts that are replaced by others; each must occur once,
    so that a plant that no longer fits fails the test.
    """
    command = (
        *(compiler or compiler_or_skip()),
        *FLAGS,
        *flags,
        f"-I{CORE}",
        f"-I{CORE / 'mqtt'}",
        f"-I{CORE / 'scan'}",
    )
    parts = [main]
    for stem in sources:
        source = CORE / f"{stem}.c"
        changes = (planted or {}).get(stem, ())
        if not changes:
            parts.append(_object(command, source))
            continue
        text = source.read_text()
        for old, new in changes:
            assert text.count(old) == 1, f"not once in {source.name}: {old}"
            text = text.replace(old, new)
        parts.append(directory / source.name)
        parts[-1].write_text(text)
    target = directory / main.stem
    _run([*command, *map(str, parts), "-Wl,-z,now", "-o", str(target)])
    return target


@cache
def _object(command: tuple[str, ...], source: Path) -> Path:
    """What `source` compiles to, once for all tests of a run."""
    target = Path(_OBJECTS.name) / f"{len(os.listdir(_OBJECTS.name))}-{source.stem}.o"
    _run([*command, "-c", str(source), "-o", str(target)])
    return target


def _run(command: Sequence[str]) -> None:
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, f"{shlex.join(command)}\n{made.stderr}"
