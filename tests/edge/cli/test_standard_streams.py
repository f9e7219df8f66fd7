"""Verbs with standard streams that are closed, full or of another encoding; and Ctrl-C at a start."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import ROOT

BRIM = f"{sys.executable} -m edge"
CODE = "import sys; from brim._command import main; sys.exit(main())"


def shell(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", ["config init", "explain CannotConnect", "--help"])
def test_a_verb_runs_with_closed_standard_streams(words: str, closed: str) -> None:
    done = shell(f"{BRIM} {words} {closed}")
    assert (done.returncode, done.stderr) == (0, "")
    assert (done.stdout == "") == (">&-" in closed.replace("2>&-", ""))


def test_an_error_is_not_printed_to_standard_output_if_standard_error_is_closed() -> None:
    done = shell(f"{BRIM} explain none 2>&-")
    assert (done.returncode, done.stdout) == (2, "")


def test_a_file_is_never_opened_as_a_closed_standard_stream(tmp_path: Path) -> None:
    """A password file that is descriptor 1 would get what the verb prints."""
    users = tmp_path / "users"
    done = shell(f"echo secret | {BRIM} passwd {users} ann --password-stdin >&-")
    assert (done.returncode, done.stderr) == (0, "")
    assert "added" not in users.read_text()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["--help", "--version", "status --help", "config init"])
def test_a_full_standard_output_is_an_error_with_a_remedy(words: str, unbuffered: str) -> None:
    done = shell(f"PYTHONUNBUFFERED={unbuffered} {BRIM} {words} > /dev/full")
    assert done.returncode == 2
    error, remedy = done.stderr.splitlines()
    assert error.endswith(": its output cannot be written: No space left on device")
    assert remedy == "  free space there, or write elsewhere"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["--help", "--version", "status --help", "config init"])
def test_a_reader_that_has_ended_is_no_error(words: str, unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as output:
        done = subprocess.run(
            [*BRIM.split(), *words.split()],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=output,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_message_that_a_full_non_blocking_pipe_does_not_take_changes_no_exit_status() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with open(reader, "rb"), open(writer, "wb", buffering=0) as errors:
        while errors.write(bytes(4096)):
            pass
        words = [*BRIM.split(), "explain", "none"]
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, check=False)
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_character_that_the_encoding_does_not_have_is_printed_nevertheless() -> None:
    done = shell(f"PYTHONIOENCODING=ascii {BRIM} explain CannotConnect")
    assert (done.returncode, done.stderr) == (0, "")
    assert "…" in done.stdout


def test_a_character_that_utf_8_does_not_have_is_printed_as_an_escape() -> None:
    """A file name with a byte that is no UTF-8 has such a character."""
    code = "from edge.cli.standard_streams import prepare_streams; prepare_streams(); print(chr(0xDC80))"
    done = shell(f"{sys.executable} -c {shlex.quote(code)}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\udc80\n", "")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_child_processes_have_the_standard_stream_that_was_closed(number: int) -> None:
    """Otherwise the first file that a child process opens would be its standard stream."""
    code = (
        "from edge.cli.standard_streams import prepare_streams; prepare_streams(); import subprocess;"
        f"assert subprocess.call(['test', '/proc/self/fd/{number}', '-ef', '/dev/null']) == 0"
    )
    closed = shell(f"{sys.executable} -c {shlex.quote(code)} {number}>&-")
    assert (closed.returncode, closed.stdout, closed.stderr) == (0, "", "")


def test_ctrl_c_during_imports_has_its_status_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {CODE}"
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "")
