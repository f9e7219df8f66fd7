"""ACL files whose rules cannot apply: `brim check`, the start and SIGHUP report it, with the remedy."""

import signal
from pathlib import Path

import pytest

from edge.auth.backend import AuthBackend
from edge.cli import main
from edge.mqtt import PubAck, Publish, Version
from edge.mqtt.reason_codes import ReasonCode
from tests.support.children import ModuleChild
from tests.support.mqtt_served import served

CERTIFICATE = '[[listener]]\nproxy_protocol = true\ncertificate_is_user = true\n[auth]\nacl_file = "acl"'
ONLY_ACL = '[auth]\nacl_file = "acl"'


@pytest.mark.parametrize(
    ("acl", "config", "said"),
    [
        ("user ann\ntopic ann/#\n", ONLY_ACL, ["(ann)", "denied to every client", "brim passwd"]),
        ("topic a/#\nuser ann\ntopic ann/#\n", ONLY_ACL, ["(ann)", "only rules before the first `user`"]),
        ("pattern read a/#\nuser ann\ntopic ann/#\n", ONLY_ACL, ["only rules before the first `user`"]),
        ("user ann\ntopic ann/#\npattern read %u/#\n", ONLY_ACL, ["denied to every client"]),
        ("topic a/#\npattern read %u/#\n", ONLY_ACL, ["patterns with %u"]),
        ("# nothing\n", ONLY_ACL, ["no rule that permits anything"]),
        ("topic deny a/#\n", ONLY_ACL, ["no rule that permits anything"]),
        ("".join(f"user u{n:02d}\ntopic x\n" for n in range(30)), ONLY_ACL, ["u00, u01", "u09 and 20 more"]),
        ("topic a/#\n", ONLY_ACL, []),
        ("user press-7\ntopic a/#\n", CERTIFICATE, []),
    ],
)  # fmt: skip
def test_check_warns_of_rules_that_cannot_apply(tmp_path, capsys, acl, config, said) -> None:
    (tmp_path / "acl").write_text(acl)
    (tmp_path / "brim.toml").write_text(config)
    assert main(["check", str(tmp_path / "brim.toml")]) == 0
    found = [line for line in capsys.readouterr().out.splitlines() if "WARNING" in line]
    assert len(found) == bool(said)
    assert [text for text in said if text not in found[0]] == []


def test_the_start_and_sighup_warn_too(runtime_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "acl").write_text("user ann\ntopic ann/#\n")
    (tmp_path / "brim.toml").write_text(ONLY_ACL)
    where = ("--runtime-dir", runtime_directory, "--state-dir", tmp_path / "state", "--port", 0)
    with ModuleChild("edge", "run", "--config", tmp_path / "brim.toml", *where) as broker:
        broker.lines_until("brim status")
        broker.process.send_signal(signal.SIGHUP)
        log = broker.log_until("never apply", 2)
        assert broker.stop()[0] == 0
    lines = [line for line in log.splitlines() if "never apply" in line]
    assert all("WARNING" in line and "brim passwd" in line for line in lines)


def test_a_name_that_nothing_verifies_counts_as_none(tmp_path: Path) -> None:
    """docs/how-to/users-and-acl.md: rules of that user do not apply, those before the first `user` do."""
    (tmp_path / "acl").write_text("topic all/#\nuser ann\ntopic ann/#\n")
    with served(access=AuthBackend(acl_file=tmp_path / "acl").access) as there:
        client = there.client(version=Version.V5, username="ann", password=b"any")
        codes = []
        for number, topic in enumerate(("ann/1", "all/1"), 1):
            client.send(Publish(topic, b"x", qos=1, packet_id=number))
            answer = client.packet()
            assert isinstance(answer, PubAck)
            codes.append(answer.reason_code)
        client.close()
    assert codes == [ReasonCode.NOT_AUTHORIZED, ReasonCode.NO_MATCHING_SUBSCRIBERS]
