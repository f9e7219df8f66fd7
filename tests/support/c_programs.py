"""C programs of the tests: sources of the core, perhaps with one line changed, and a main()."""

import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.project import ROOT

CORE = ROOT / "ringbuf" / "c"
_BASE = ("base/record", "base/crc32c")
RING = (
    *(f"ring/{stem}" for stem in ("writer", "reader", "ring", "wait", "log_wakeup", "commit_index")),
    *_BASE,
    "base/eventcount",
)
# Of the hot path all but sockets, and what needs an interpreter.
_SOCKETS = {"mqtt/event_loop", "mqtt/accept", "mqtt/linger"}
_PLAIN = (str(it.relative_to(CORE).with_suffix("")) for it in sorted((CORE / "mqtt").rglob("*.c")))
MQTT = (*RING, "base/utf8", *(stem for stem in _PLAIN if stem not in _SOCKETS))
LOOP = (*MQTT, *sorted(_SOCKETS))  # with sockets
SCAN = (*_BASE, *(f"scan/{it.stem}" for it in sorted((CORE / "scan").glob("*.c"))))
UNPACK = ("arrow/msgpack", "base/utf8")
TABLE = ("mqtt/table",)
FLAGS = ("-std=c11", "-g", "-pthread", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror")
FAILING = ("-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc",)  # link flags: allocations fail
KEPT = ROOT / "build" / "test-objects"
KEPT_S = 7 * 86_400.0


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
    link_flags: Sequence[str] = (),
    compiler: Sequence[str] = (),
    sources: Sequence[str] = RING,
    planted: Mapping[str, Sequence[tuple[str, str]]] | None = None,
) -> Path:
    """The program of `main` and `sources` (RING, MQTT or LOOP); `directory` takes changed sources.

    `link_flags` are for the linker alone: programs that differ in them share their objects.
    `planted`: for one of the sources, texts that are replaced by others; each must occur once,
    so that a plant that no longer fits fails the test.
    """
    command = (*(compiler or compiler_or_skip()), *FLAGS, *flags, f"-I{CORE}")
    parts = [main]
    for stem in sources:
        source = CORE / f"{stem}.c"
        if changes := (planted or {}).get(stem, ()):
            text = source.read_text()
            for old, new in changes:
                assert text.count(old) == 1, f"not once in {source.name}: {old}"
                text = text.replace(old, new)
            source = directory / f"planted-{source.name}"
            source.write_text(text)
        parts.append(source)
    objects = [_made((*command, "-c"), part) for part in parts]
    return _made((*command, "-Wl,-z,now", *link_flags), *objects)


def _made(command: tuple[str, ...], *inputs: Path) -> Path:
    """Output of `command` for `inputs`, kept between runs under a digest of everything that it depends on."""
    digest = sha256("\0".join([_version(command[0]), *command]).encode() + _headers())
    for it in inputs:
        digest.update(sha256(it.read_bytes()).digest())
    target = KEPT / digest.hexdigest()
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=_kept()) as place:
            _run([*command, *map(str, inputs), "-o", f"{place}/made"])
            Path(place, "made").replace(target)
    target.touch()
    return target


@cache
def _kept() -> Path:
    """The folder of what was compiled, without what no test has used for KEPT_S."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for old in [it for it in KEPT.iterdir() if it.is_file() and it.stat().st_mtime < time.time() - KEPT_S]:
        old.unlink(missing_ok=True)
    return KEPT


@cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout


@cache
def _headers() -> bytes:
    """Of all that a source may include; functional.c includes a source of base/."""
    included = (*CORE.rglob("*.h"), *(CORE / "base").glob("*.c"), *(ROOT / "tests" / "c").glob("*.h"))
    return sha256(b"".join(it.read_bytes() for it in sorted(included))).digest()


def _run(command: Sequence[str]) -> None:
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, f"{shlex.join(command)}\n{made.stderr}"
