"""Login and permissions, with `brim run` and the clients of Mosquitto."""

import signal
import subprocess
from pathlib import Path

import pytest

from edge.auth.password_file import change_user, delete_user
from edge.auth.password_hash import make_hash
from edge.cli import main
from tests.support.children import ModuleChild
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.mosquitto

AUTH = """
[auth]
password_file = "users"
acl_file = "acl"
"""
ACL = "user ann\ntopic ann/#\ntopic read both\nuser bob\ntopic bob/#\ntopic read ann/shared\ntopic both\n"


class Site:
    """A broker with the users ann and bob, each with its name as password."""

    def __init__(self, runtime: Path, directory: Path) -> None:
        self.directory = directory
        self.users, self.acl = directory / "users", directory / "acl"
        for name in ("ann", "bob"):
            change_user(self.users, name, make_hash(name.encode(), "pbkdf2"))
        self.acl.write_text(ACL)
        self._runtime = runtime
        self.port = 0

    def start(self, text: str = AUTH) -> ModuleChild:
        config = self.directory / "brim.toml"
        config.write_text(text)
        directories = ("--runtime-dir", self._runtime, "--state-dir", self.directory / "state")
        child = ModuleChild("edge", "run", "--port", 0, "--config", config, *directories)
        ready = child.lines_until("brim status")
        self.port = int(ready[0].partition("mqtt 127.0.0.1:")[2].partition(",")[0])
        return child

    def pub(self, who: str, topic: str, payload: str, *more: str) -> subprocess.CompletedProcess[str]:
        return self.run("mosquitto_pub", who, "-t", topic, "-m", payload, "-q", "1", *more)

    def run(self, tool: str, who: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [tool, "-p", str(self.port), *_names(who), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def _names(who: str) -> list[str]:
    name, colon, password = who.partition(":")
    return [*(["-u", name] if name else []), *(["-P", password if colon else name] if name else [])]


@pytest.fixture
def site(runtime_directory: Path, tmp_path: Path) -> Site:
    return Site(runtime_directory, tmp_path)


def received(site: Site, who: str, *filters: str) -> list[str]:
    """Topics of the retained messages that a client receives, in order."""
    wanted = [word for text in filters for word in ("-t", text)]
    done = site.run("mosquitto_sub", who, *wanted, "-F", "%t", "-W", "1")
    return sorted(done.stdout.split())


def test_users_get_in_by_password_and_reach_what_their_rules_allow(site):
    with site.start() as broker:
        assert site.pub("ann", "ann/x", "1", "-r").returncode == 0
        assert site.pub("ann", "ann/shared", "1", "-r").returncode == 0
        assert site.pub("bob", "both", "1", "-r").returncode == 0
        assert site.pub("bob", "ann/forged", "1", "-r").returncode == 0  # acknowledged, and not stored
        assert site.pub("ann:wrong", "ann/x", "2").returncode == 4
        assert site.pub("eve", "ann/x", "2").returncode == 4
        assert site.pub("", "ann/x", "2").returncode == 5  # no client without a name, also on loopback
        assert received(site, "ann", "#") == ["ann/shared", "ann/x", "both"]
        assert received(site, "bob", "#") == ["ann/shared", "both"]
        assert received(site, "bob", "ann/+") == ["ann/shared"]
        assert broker.stop()[0] == 0


def test_clients_without_a_name_are_let_in_where_the_listener_says_so(site):
    site.acl.write_text("topic read open/#\n" + ACL.replace("topic ann/#", "topic ann/#\ntopic open/#"))
    with site.start(AUTH + "[[listener]]\nallow_anonymous = true\n") as broker:
        assert site.pub("ann", "open/x", "1", "-r").returncode == 0
        assert site.pub("", "open/y", "1", "-r").returncode == 0  # acknowledged, and not stored
        assert site.pub("ann:wrong", "open/x", "1").returncode == 4
        assert received(site, "", "#") == ["open/x"]
        assert broker.stop()[0] == 0


def test_a_hangup_signal_reads_the_files_again_and_expels_who_is_no_longer_there(site):
    with site.start() as broker:
        where = ["-p", str(site.port), *_names("bob"), "-t", "bob/#"]
        command = ["stdbuf", "-oL", "mosquitto_sub", "-d", *where]
        sub = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            wait_for(sub.stdout, "Subscribed")
            delete_user(site.users, "bob")
            change_user(site.users, "cid", make_hash(b"cid", "pbkdf2"))
            site.acl.write_text("user cid\ntopic cid/#\n")
            broker.process.send_signal(signal.SIGHUP)
            wait_until(lambda: site.pub("cid", "cid/x", "1", "-r").returncode == 0)
            assert site.pub("bob", "bob/x", "1").returncode == 4
            wait_for(sub.stdout, "CONNACK (4)")  # it was closed, came back and was refused
        finally:
            sub.kill()
            sub.communicate()
        assert received(site, "cid", "#") == ["cid/x"]
        status, _, log = broker.stop()
        assert status == 0
        assert "password and ACL files reloaded users=2 changed=1" in log
        assert "client disconnected: no longer authorized" in log


def test_broken_files_are_said_and_the_old_ones_stay_in_force(site):
    with site.start() as broker:
        good = site.users.read_text()
        site.users.write_text("ann\n")
        site.acl.write_text("topik x\n")
        broker.process.send_signal(signal.SIGHUP)
        mistakes = broker.log_until("'topik'")
        assert "users:1: no colon" in mistakes
        assert site.pub("ann", "ann/x", "1").returncode == 0
        site.users.write_text(good)
        site.acl.write_text(ACL)
        broker.process.send_signal(signal.SIGHUP)
        broker.log_until("files reloaded", mistakes.count("files reloaded") + 1)
        assert broker.stop()[0] == 0


def wait_for(lines, text: str) -> None:
    for line in lines:
        if text in line:
            return
    raise AssertionError(f"no {text!r}")


def test_brim_check_tells_mistakes_of_both_files(site, capsys):
    config = site.directory / "brim.toml"
    config.write_text(AUTH)
    assert main(["check", str(config)]) == 0
    out = capsys.readouterr().out
    assert f"users     2 in {site.users}" in out
    assert "WARNING" not in out
    site.acl.write_text(ACL + "user zoe\ntopic zoe\n")
    assert main(["check", str(config)]) == 0
    assert "lacks: zoe" in capsys.readouterr().out
    config.write_text('[auth]\nacl_file = "acl"')
    assert main(["check", str(config)]) == 0
    assert "no client can prove a user name" in capsys.readouterr().out
    config.write_text(AUTH)
    site.users.write_text("ann\n")
    site.acl.write_text("topik x\n")
    assert main(["check", str(config)]) == 2
    assert [line.partition(": ")[0] for line in capsys.readouterr().err.splitlines()] == [
        f"{site.users}:1",
        f"{site.acl}:1",
    ]
