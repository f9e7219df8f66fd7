"""The file of users: what is read, what is refused by its line, and how one user is changed."""

import base64
import logging
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from edge.auth.errors import AuthFileError
from edge.auth.password_file import change_user, delete_user, parse_users, read_users
from edge.auth.password_hash import HASH_KINDS, make_hash, parse_hash
from edge.auth.scram_keys import make_keys
from edge.errors import EdgeError
from tests.support import mosquitto

# Made by mosquitto_passwd 2.0.11.
PBKDF2 = (
    "$7$101$3VJt/WWVbLsdR4ng$"
    "3Qr8yo9SDREaIJ+rynVdkNIPvl9Irv8PaHR/E38GD4Gp0ZG00lVy6h8XvecczloIkuSeA7GcF0AY8V6eX4JnKA=="
)


def fits(users, name, password):
    stored = users[name].password
    return stored is not None and stored.fits(password)


@pytest.mark.parametrize("kind", HASH_KINDS)
def test_what_is_made_fits_its_password_and_no_other(kind):
    text = make_hash(b"secret \xff", kind)
    assert make_hash(b"secret \xff", kind) != text  # another salt
    assert parse_hash(text).fits(b"secret \xff")
    assert not any(parse_hash(text).fits(other) for other in (b"", b"secret ", b"secret \xfe"))


def test_a_hash_of_mosquitto_fits_its_password():
    assert parse_hash(PBKDF2).fits(b"p")
    assert not parse_hash(PBKDF2).fits(b"q")


@pytest.mark.mosquitto
@pytest.mark.parametrize("how", [(), ("-H", "sha512"), ("-H", "sha512-pbkdf2")], ids=str)
def test_files_of_mosquitto_passwd_are_read(tmp_path, how):
    tool = shutil.which("mosquitto_passwd")
    if tool is None:
        pytest.skip("needs mosquitto_passwd: apt-get install mosquitto")
    file = tmp_path / "users"
    for number, (user, password) in enumerate((("ann", "a b"), ("bob", "ü:$"))):
        create = ["-c"] if number == 0 else []
        subprocess.run([tool, *how, *create, "-b", file, user, password], check=True, capture_output=True)
    users = read_users(file)
    assert fits(users, "ann", b"a b")
    assert fits(users, "bob", "ü:$".encode())
    assert not fits(users, "bob", b"a b")


def test_a_pbkdf2_entry_has_a_salt_of_the_length_that_mosquitto_reads():
    *_, salt, _ = make_hash(b"x", "pbkdf2").split("$")
    assert len(base64.b64decode(salt)) == 12


@pytest.mark.mosquitto
def test_mosquitto_reads_a_pbkdf2_entry(tmp_path):
    if mosquitto.BINARY is None:
        pytest.skip("needs mosquitto: apt-get install mosquitto")
    (tmp_path / "users").write_text(f"ann:{make_hash(b'a b', 'pbkdf2')}\n")
    with mosquitto.running(tmp_path, f"password_file {tmp_path / 'users'}") as broker:
        command = ["mosquitto_pub", "-p", str(broker.port), "-u", "ann", "-t", "a", "-m", "b", "-P"]
        assert subprocess.run([*command, "a b"], check=False, capture_output=True).returncode == 0, broker.log
        assert subprocess.run([*command, "wrong"], check=False, capture_output=True).returncode != 0


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("ann", "no colon"),
        ("ann:secret", "no hash of a known kind"),
        (":$7$1$eA==$eA==", "at least one character"),
        ("a\tb:x", "is not allowed in a user name"),
        ("ann:$7$0$eA==$eA==", "iterations from 1"),
        ("ann:$7$x$eA==$eA==", "iterations from 1"),
        ("ann:$7$99999999999$eA==$eA==", "iterations from 1"),
        ("ann:$7$101$eA==$eA==", "the hash has 1 bytes instead of 64"),
        ("ann:$7$101$!$eA==", "the salt is not base64"),
        ("ann:$6$salt$" + 86 * "x", "crypt(3)"),
        ("ann:$argon2id$v=19$m=1", "damaged"),
        ("ann:$argon2i$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$c2FsdHNhbHQ", "argon2i and argon2d"),
        ("ann:SCRAM-SHA-256$1:x", "is written"),
        ("ann:SCRAM-SHA-256$0:eA==$eA==:eA==", "iterations from 1"),
        ("ann:SCRAM-SHA-256$1:eA==$eA==:eA==", "have 32 bytes"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_and_what_is_secret_in_it_is_not(line, complaint):
    good = f"bob:{PBKDF2}"
    with pytest.raises(AuthFileError) as caught:
        parse_users(f"# users\n\n{good}\n{line}\n", "users")
    (problem,) = caught.value.problems
    assert problem.startswith("users:4: ")
    assert complaint in problem
    assert line.partition(":")[2][4:] not in problem or not line.partition(":")[2][4:]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_the_remedy_for_what_is_no_file_is_another_name(tmp_path, make):
    make(tmp_path / "users")
    with pytest.raises(AuthFileError, match=r"not a regular file; name a regular file"):
        read_users(tmp_path / "users")


def test_every_mistake_of_a_file_is_told_at_once():
    with pytest.raises(AuthFileError) as caught:
        parse_users(f"ann\nbob:{PBKDF2}\nbob:{PBKDF2}\n", "users")
    assert [text.partition(": ")[0] for text in caught.value.problems] == ["users:1", "users:3"]


def test_a_user_may_have_a_password_and_scram_keys():
    users = parse_users(f"ann:{PBKDF2}\r\nann:{make_keys('p', iterations=1)}\r\n", "users")
    assert users["ann"].password
    assert users["ann"].scram
    assert len(users) == 1


def test_a_file_that_cannot_be_read_is_said(tmp_path):
    with pytest.raises(AuthFileError, match="cannot be read: No such file"):
        read_users(tmp_path / "none")
    (tmp_path / "latin").write_bytes(b"\xe4:x")
    with pytest.raises(AuthFileError, match="byte 0 is not UTF-8"):
        read_users(tmp_path / "latin")


def test_a_file_that_everybody_may_read_is_warned_of(tmp_path, caplog):
    file = tmp_path / "users"
    change_user(file, "ann", PBKDF2)
    with caplog.at_level(logging.WARNING):
        read_users(file)
        assert not caplog.records
        file.chmod(0o644)
        read_users(file)
    assert "chmod o-r" in caplog.text


def test_changing_a_user_leaves_all_other_lines_as_they_are(tmp_path):
    file = tmp_path / "users"
    file.write_text(f"# head\nann:{PBKDF2}\nbob:{PBKDF2}\n# tail\n")
    keys = make_keys("x", iterations=1)
    new = make_hash(b"new", "pbkdf2")
    assert change_user(file, "ann", new)
    assert not change_user(file, "ann", str(keys))
    assert not change_user(file, "cid", new)
    assert file.read_text() == f"# head\nann:{new}\nbob:{PBKDF2}\n# tail\nann:{keys}\ncid:{new}\n"
    assert delete_user(file, "ann")
    assert not delete_user(file, "ann")
    assert file.read_text() == f"# head\nbob:{PBKDF2}\n# tail\ncid:{new}\n"


def test_the_file_is_its_owners_alone_and_replaced_in_one_step(tmp_path):
    file = tmp_path / "users"
    before = os.umask(0)
    try:
        change_user(file, "ann", PBKDF2)
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o600
    with file.open() as reader:
        change_user(file, "bob", PBKDF2)
        assert reader.read() == f"ann:{PBKDF2}\n"  # who reads the old file reads all of it
    assert os.listdir(tmp_path) == ["users"]


def test_a_link_stays_one(tmp_path):
    (tmp_path / "real").write_text("")
    (tmp_path / "link").symlink_to("real")
    change_user(tmp_path / "link", "ann", PBKDF2)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == f"ann:{PBKDF2}\n"


def test_a_file_that_cannot_be_written_is_said_and_nothing_is_left_behind(tmp_path):
    with pytest.raises(EdgeError, match="cannot be written: No such file"):
        change_user(tmp_path / "none" / "users", "ann", PBKDF2)
    (tmp_path / "directory").mkdir()
    with pytest.raises(EdgeError):
        change_user(tmp_path / "directory", "ann", PBKDF2)
    assert os.listdir(tmp_path) == ["directory"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another group")
def test_a_file_that_root_writes_is_readable_for_the_group_of_its_directory_and_stays_so(
    tmp_path: Path,
) -> None:
    file = tmp_path / "users"
    os.chown(tmp_path, 0, 4_242)
    tmp_path.chmod(0o750)
    for user in ("ann", "bob"):
        change_user(file, user, PBKDF2)
        assert (file.stat().st_gid, file.stat().st_mode & 0o777) == (4_242, 0o640)
    file.chmod(0o600)
    os.chown(file, 77, 4_242)
    change_user(file, "ann", PBKDF2)
    assert (file.stat().st_uid, file.stat().st_mode & 0o777) == (77, 0o600)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    os.chown(closed, 0, 4_242)
    change_user(closed / "users", "ann", PBKDF2)
    assert (closed / "users").stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_read_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        AuthFileError, match=r"No such file or directory; `brim passwd .*/users NAME` makes it"
    ):
        read_users(tmp_path / "users")
