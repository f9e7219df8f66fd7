"""`brim passwd`, as it is typed."""

import io
import json
import os
import pty
import subprocess
import sys

import pytest

from edge.auth.password_file import read_users
from edge.auth.password_hash import make_hash
from edge.cli import main
from persistence.files import OsFiles
from tests.support.project import ROOT


def fits(file, password):
    stored = read_users(file)["ann"].password
    return stored is not None and stored.fits(password)


@pytest.fixture
def say(monkeypatch):
    def typed(text):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))

    return typed


def test_a_user_is_added_changed_and_deleted(tmp_path, say, capsys):
    file = tmp_path / "users"
    say("one\n")
    assert main(["passwd", str(file), "ann", "--password-stdin"]) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert fits(file, b"one")
    say("two")
    assert main(["passwd", str(file), "ann", "--password-stdin", "--hash", "pbkdf2", "--json"]) == 0
    assert fits(file, b"two")
    assert main(["passwd", str(file), "ann", "--delete"]) == 0
    assert read_users(file) == {}
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "ann: added"
    assert json.loads(out[1]) == {"file": str(file), "user": "ann", "done": "changed"}
    assert out[2] == "ann: deleted"


def test_a_change_is_on_the_disk_with_its_name(tmp_path, say, monkeypatch):
    synced, dirsync = [], OsFiles.dirsync

    def noted(self, path):
        synced.append(path)
        dirsync(self, path)

    monkeypatch.setattr(OsFiles, "dirsync", noted)
    say("one\n")
    assert main(["passwd", str(tmp_path / "users"), "ann", "--password-stdin"]) == 0
    assert str(tmp_path) in synced


def test_scram_keys_stand_beside_a_password(tmp_path, say):
    file = tmp_path / "users"
    for how in ((), ("--scram",)):
        say("one\n")
        assert main(["passwd", str(file), "ann", "--password-stdin", *how]) == 0
    ann = read_users(file)["ann"]
    assert ann.password
    assert ann.scram


def test_what_cannot_be_done_leaves_the_file_alone(tmp_path, say, capsys):
    file = tmp_path / "users"
    hashed = make_hash(b"x", "pbkdf2")
    file.write_text(f"ann:{hashed}\n")
    before = file.read_bytes()
    for text, arguments, complaint in [
        ("x\n", ["a:b"], "':' is not allowed"),
        ("\n", ["bob"], "the password is empty"),
        ("x\n", ["bob", "--delete"], "there is no user 'bob'"),
        ("\u0007\n", ["bob", "--scram"], "cannot be used for SCRAM"),
        ("x\n", [257 * "=", "--scram"], "it has 771 bytes in a message, 768 are allowed"),
    ]:
        say(text)
        how = [] if "--delete" in arguments else ["--password-stdin"]
        assert main(["passwd", str(file), *arguments, *how]) == 2
        assert complaint in capsys.readouterr().err
    assert main(["passwd", str(tmp_path / "absent"), "ann", "--delete"]) == 2
    assert "absent does not exist\n  check the path" in capsys.readouterr().err
    say("x\n")
    assert main(["passwd", str(file), "bob"]) == 2
    assert "use --password-stdin" in capsys.readouterr().err
    file.write_text("ann\n")
    assert main(["passwd", str(file), "bob", "--password-stdin"]) == 2
    assert f"{file}:1: no colon" in capsys.readouterr().err
    file.write_bytes(before)
    assert os.listdir(tmp_path) == ["users"]


@pytest.mark.parametrize(("second", "status"), [("secret\n", 0), ("other\n", 2), ("\x04", 2)])
def test_a_terminal_is_asked_twice_and_shows_nothing(tmp_path, second, status):
    """On a terminal of its own, in a session of its own: getpass opens /dev/tty."""
    file = tmp_path / "users"
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, "-m", "edge", "passwd", file, "ann"]
        code = (
            f"import os, fcntl, termios, sys; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv({command[0]!r}, "
        )
        code += f"{list(map(str, command))!r})"
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip
        shown = b""
        for prompt, answer in ((b"Password:", "secret\n"), (b"Again:", second)):
            while prompt not in shown:
                shown += os.read(ours, 1024)
            os.write(ours, answer.encode())
        assert child.wait(20) == status
        shown += os.read(ours, 1024)
        assert b"Traceback" not in shown
        assert b"secret" not in shown
    finally:
        os.close(ours)
        os.close(theirs)
    if status == 0:
        assert fits(file, b"secret")
    else:
        assert not file.exists()
