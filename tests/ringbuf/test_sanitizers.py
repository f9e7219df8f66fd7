"""The C core under sanitizers, and on another processor.

Short runs of what `python build.py --sanitize ...` and tests/c are for; each is skipped, and says why,
where the compiler has no such thing.  The long run is the whole ring test set under ASan and UBSan: a
campaign.
"""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.c_programs import compiled, compiler_or_skip
from tests.support.project import ROOT

C = ROOT / "tests" / "c"
ADDRESS = (
    "-O1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
)
THREAD = ("-O1", "-fsanitize=thread", "-Wno-error")


def run(program: Path, *arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program with addresses that sanitizers support."""
    command = [str(program), *map(str, arguments)]
    if shutil.which("setarch"):  # ThreadSanitizer of older compilers knows only some layouts
        command = ["setarch", os.uname().machine, "-R", *command]
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@cache
def missing(command: tuple[str, ...]) -> str | None:
    """The end of what the compiler reports if it cannot make a program that starts; None if it can."""
    with TemporaryDirectory() as folder:
        empty = Path(folder, "empty.c")
        empty.write_text("int main(void) { return 0; }\n")
        made = subprocess.run(
            [*command, str(empty), "-o", f"{folder}/empty"], capture_output=True, text=True, check=False
        )
        done = made if made.returncode else run(Path(folder, "empty"), check=False)
        return f"status {done.returncode}: {done.stderr.strip()[-100:]}" if done.returncode else None


def sanitized_or_skip(directory: Path, main: str, *flags: str, **more) -> Path:
    """The program, if the compiler and its libraries can make and start such a thing."""
    command = compiler_or_skip()
    if (error := missing((*command, *flags))) is not None:
        pytest.skip(f"{command[0]} has no working {flags[1]}: {error}")
    return compiled(directory, C / f"{main}.c", *flags, **more)


@pytest.mark.parametrize("program", ["functional", "stress"])
def test_the_core_is_clean_under_asan_and_ubsan(tmp_path: Path, program: str) -> None:
    run(sanitized_or_skip(tmp_path, program, *ADDRESS), *([20_000] if program == "stress" else []))


def test_threads_on_one_ring_do_not_race(tmp_path: Path) -> None:
    assert "WARNING" not in run(sanitized_or_skip(tmp_path, "stress", *THREAD), 20_000, "blocking").stderr


@pytest.mark.parametrize(
    ("source", "stores"),
    [
        ("ring/writer", ["store_length(writer, writer->tail, length, memory_order_release);"]),
        ("ring/reader", ["atomic_store_explicit(&reader->slot->cursor, released, memory_order_release);"]),
        (
            "ring/writer",
            [
                "atomic_store_explicit(&step->position, writer->tail, memory_order_release);",
                "atomic_store_explicit(&commit_index->count, count, memory_order_release);",
            ],
        ),
    ],
    ids=["commit", "release", "commit_index"],
)
def test_a_missing_release_is_a_race_that_is_found(tmp_path: Path, source: str, stores: list[str]) -> None:
    planted = {source: [(it, it.replace("order_release", "order_relaxed")) for it in stores]}
    program = sanitized_or_skip(tmp_path, "stress", *THREAD, planted=planted)
    assert "ThreadSanitizer: data race" in run(program, 20_000, "blocking", check=False).stderr


def test_blocking_readers_miss_nothing_and_plain_ones_are_never_told_wrong(tmp_path: Path) -> None:
    assert run(compiled(tmp_path, C / "stress.c", "-O2"), 50_000).stdout.startswith("50000 records")


def test_a_seek_that_the_writer_is_not_told_of_is_found(tmp_path: Path) -> None:
    """The stress can tell: its replaying reader would be lapped."""
    told = "        atomic_fetch_add_explicit(reader->joined, 1, memory_order_release);\n"
    program = compiled(
        tmp_path, C / "stress.c", "-O2", planted={"ring/reader": [(told, "        (void)0;\n")]}
    )
    assert "at offset" in run(program, 2_000_000, "blocking", check=False).stdout


def test_the_core_does_the_same_on_aarch64(tmp_path: Path) -> None:
    """Under qemu, which shows what the code does there, not how weak the memory of the real thing is."""
    compiler = compiler_or_skip("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross")
    qemu = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if qemu is None:
        pytest.skip("no qemu-aarch64: apt-get install qemu-user")
    program = compiled(tmp_path, C / "functional.c", "-O2", "-static", compiler=compiler)
    subprocess.run([qemu, program, "dump", tmp_path / "dump"], check=True)
    dump = (tmp_path / "dump").read_bytes()
    golden = (ROOT / "tests" / "golden" / "ringbuf" / "ring-v2.bin").read_bytes()
    assert dump[: len(golden)] == golden


SELECTED = (
    "ringbuf/test_writer.py", "ringbuf/test_reader.py", "ringbuf/test_blocking_readers.py",
    "ringbuf/test_types.py", "ringbuf/test_filtered_polls.py", "ringbuf/test_batch_of.py",
    "edge/consumers/test_group_filters.py", "edge/load/test_losses.py", "edge/load/test_scenarios.py",
    "edge/local/test_zmq_limiter.py", "edge/transport/test_websocket.py",
    "edge/engine/test_retained_message.py", "edge/broker/test_plain_connect.py",
)  # fmt: skip


def python_under_asan(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest with a sanitized module in the place of the ordinary one."""
    library = subprocess.run(
        [*compiler_or_skip(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(library).is_absolute():
        pytest.skip("no libasan.so beside this compiler")
    if (error := missing((*compiler_or_skip(), *ADDRESS))) is not None:
        pytest.skip(f"AddressSanitizer does not work here: {error}")
    built = tmp_path / "house"
    built.mkdir()
    for name in ("ringbuf", "tests", "edge", "persistence", "bridge"):
        ignore = shutil.ignore_patterns("*.so")
        shutil.copytree(ROOT / name, built / name, ignore=ignore)
    for name in ("build.py", "dev", "pyproject.toml"):
        shutil.copy(ROOT / name, built / name)
    environment = {
        **os.environ,
        "LD_PRELOAD": library,
        # The ring has a handler of SIGBUS, which leaves faults elsewhere to the one before it.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:handle_sigbus=0",
        "PYTHONPATH": str(built),
        "PYTHONMALLOC": "malloc",
    }
    sanitized = ["build.py", "--sanitize", "address,undefined", "--into", str(built / "ringbuf")]
    plain = {**os.environ, "CFLAGS": "-O0"}  # the compiler would take longer than the tests
    made = subprocess.run(
        [sys.executable, *sanitized], cwd=ROOT, capture_output=True, text=True, check=False, env=plain
    )
    assert made.returncode == 0, made.stdout + made.stderr
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=built, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.timeout(600)  # a busy machine takes five minutes
def test_the_python_types_are_clean_under_asan_and_ubsan(tmp_path: Path) -> None:
    done = python_under_asan(tmp_path, *(f"tests/{name}" for name in SELECTED))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_every_ring_test_is_clean_under_asan_and_ubsan(tmp_path: Path) -> None:
    done = python_under_asan(
        tmp_path, "tests/ringbuf", "--timeout", "600", "--deselect", "tests/ringbuf/test_sanitizers.py"
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
