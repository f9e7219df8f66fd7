"""Password and ACL files that are read again: clients are checked, and rules only if they have changed."""

import logging
from pathlib import Path

import pytest

from edge.auth.backend import AuthBackend
from edge.auth.interfaces import ClientInfo
from edge.auth.password_file import change_user
from edge.auth.password_hash import make_hash


def test_rules_that_have_not_changed_are_not_applied_again_after_a_change_of_users(tmp_path: Path) -> None:
    users, acl = tmp_path / "users", tmp_path / "acl"
    change_user(users, "ann", make_hash(b"secret", "pbkdf2"))
    acl.write_text("topic read a/#\n")
    backend, changes = AuthBackend(users, acl), list[bool]()
    access = backend.access
    change_user(users, "bob", make_hash(b"secret", "pbkdf2"))
    backend.apply(backend.read(), changes.append)
    assert backend.access is access
    acl.write_text("topic read b/#\n")
    backend.apply(backend.read(), changes.append)
    acl.write_text("topic read a/#\n")
    backend.apply(backend.read(), changes.append)
    assert changes == [False, True, True]
    assert access is not None
    assert backend.access is not None
    client = ClientInfo("c", None, "127.0.0.1:1", 0)
    assert backend.access.may_receive(client, "a/1")
    backend.close()


def test_files_that_were_read_before_other_rules_came_into_force_change_the_rules(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic read a/#\n")
    backend, changes = AuthBackend(acl_file=acl), list[bool]()
    early = backend.read()
    acl.write_text("topic read b/#\n")
    backend.apply(backend.read(), changes.append)
    backend.apply(early, changes.append)
    assert changes == [True, True]


def test_a_reload_of_a_password_file_without_users_warns_of_the_refusals(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users = tmp_path / "users"
    change_user(users, "ann", make_hash(b"secret", "pbkdf2"))
    backend = AuthBackend(users)
    caplog.set_level(logging.WARNING)
    backend.apply(backend.read(), lambda _: None)
    assert caplog.text == ""
    users.write_text("")
    backend.apply(backend.read(), lambda _: None)
    assert f"password file has no users, every login is refused file={users}" in caplog.text
    backend.close()
