"""Completion scripts offer what the parsers have, in the three shells themselves; --color and NO_COLOR."""

import argparse
import os
import pty
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edge.cli import VERBS, main, parser_of
from edge.cli.completion import SHELLS, script
from tests.support.project import ROOT
from tests.support.waiting import PATIENCE_S

BASH = """
source {file}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _brim
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
# Functions of the completion system of zsh that the script calls.
ZSH = """
compdef() {{ : }}
_describe() {{ for item in "${{(@P)2}}"; do print -r -- "${{item%%:*}}"; done }}
compadd() {{ shift; print -rl -- "$@" }}
_files() {{ print -r -- FILES }}
source {file}
words=({words}); CURRENT=$#words; PREFIX=$words[-1]; _brim
"""
FISH = "source {file}; complete -C {words} | string replace -r '\\t.*' ''"


def completions(shell: str, line: str, directory: Path) -> set[str]:
    """Words that the shell offers at the end of `line`, whose last word may be ''."""
    if shutil.which(shell) is None:
        pytest.skip(f"needs the Debian package {shell}")
    file = directory / f"brim.{shell}"
    file.write_text(script(shell))
    *words, last = line.split(" ")
    if shell == "fish":
        text = FISH.format(file=file, words=shlex.quote(line))
    else:
        quoted = " ".join([*map(shlex.quote, words), shlex.quote(last)])
        text = {"bash": BASH, "zsh": ZSH}[shell].format(file=file, words=quoted)
    plain = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    environment = {**os.environ, "HOME": str(directory)}
    done = subprocess.run(
        [shell, *plain, "-c", text],
        check=False, capture_output=True, text=True, env=environment, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.stderr == ""
    return {it for it in done.stdout.splitlines() if it.startswith(last) or it == "FILES"}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("brim s", {it for it in VERBS if it.startswith("s")}),
        ("brim bridge pa", {"pause"}),
        ("brim run --log-fo", {"--log-format"}),
        ("brim run --log-format ", {"text", "json"}),
        ("brim sub -t a --will-q", {"--will-qos"}),
        ("brim completion z", {"zsh"}),
        ("brim status --col", {"--color"}),
        ("brim status --color ", {"auto", "always", "never"}),
    ],
)
def test_a_shell_offers_what_the_parser_has(
    shell: str, line: str, expected: set[str], tmp_path: Path
) -> None:
    assert completions(shell, line, tmp_path) == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_every_option_of_every_verb_is_offered(shell: str, tmp_path: Path) -> None:
    text = script(shell)
    for verb in VERBS:
        for action in parser_of(verb)._actions:
            for name in action.option_strings if action.help is not argparse.SUPPRESS else ():
                assert (f"-l {name[2:]}" if shell == "fish" and name[:2] == "--" else name[1:]) in text


def test_color_is_for_terminals_and_for_those_who_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show = "import sys; from edge.cli.color import *; apply_color(sys.argv[1]); print(colored('x', 'red'))"

    def shown(choice: str, terminal: bool, **environment: str) -> bytes:
        ours, theirs = pty.openpty()
        out = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        clean = {key: it for key, it in os.environ.items() if key not in {"NO_COLOR", "FORCE_COLOR"}}
        subprocess.run(
            [sys.executable, "-c", show, choice],
            stdout=theirs if terminal else out,
            env={**clean, **environment}, cwd=ROOT, check=True, timeout=PATIENCE_S,
        )  # fmt: skip
        os.close(theirs)
        found = os.read(ours, 100) if terminal else (tmp_path / "out").read_bytes()
        os.close(ours)
        os.close(out)
        return found.strip()

    red = b"\x1b[31mx\x1b[0m"
    assert shown("auto", True) == red
    assert shown("auto", False) == b"x"
    assert shown("auto", True, NO_COLOR="1") == b"x"
    assert shown("always", False, NO_COLOR="1") == red
    assert shown("never", True, FORCE_COLOR="1") == b"x"


def test_every_verb_that_prints_takes_color(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["status", "--color", "blue"])
    assert "--color" in capsys.readouterr().err
