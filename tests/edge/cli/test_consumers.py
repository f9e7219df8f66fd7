"""brim consumers, against a broker that runs: lists, lag, and resets, for people and for programs."""

import errno
import json
import os
import stat
from pathlib import Path

import pytest
import zmq.auth

from brim import Letter, consumer, publish
from edge.cli import main
from edge.cli.consumers import place_in_words
from edge.errors import EdgeError, InvalidArgument, Refused
from tests.support.brim_process import BrimProcess
from tests.support.ports import free_port


@pytest.fixture
def broker(runtime_directory, tmp_path):
    with BrimProcess(runtime_directory, tmp_path) as broker:
        yield broker


def brim(capsys, *words: object) -> tuple[int, str, str]:
    status = main(["consumers", *map(str, words)])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_groups_are_listed_with_their_lag_and_put_somewhere_else(broker, capsys):
    where = ("--runtime-dir", broker.runtime_dir)
    assert brim(capsys, "ls", *where) == (0, "there are no groups of consumers\n", "")
    publish([(Letter(f"a/{i}"), b"x") for i in range(10)], runtime_dir=broker.runtime_dir)
    with consumer("billing", "a/#", start="oldest", name="till", runtime_dir=broker.runtime_dir) as records:
        batch = records.read(20.0)
        assert batch is not None
        records.ack(batch, [0, 1, 2, 5])
        status, said, _ = brim(capsys, "lag", "billing", *where)
        assert status == 0
        assert "billing: ordered, 1 consumer, 6 records behind, of a/#" in said
        assert (
            "default-0: done below 3 and 1 above, ends at 10, 6 behind, 6 handed out, owned by till" in said
        )
        status, _, error = brim(capsys, "reset", "billing", "--to", "oldest", *where)
        assert (status, "is in use: till" in error, "stop its consumers first" in error) == (4, True, True)
    status, said, _ = brim(capsys, "reset", "billing", "--to", "8", "--json", *where)
    (facts,) = json.loads(said)
    assert (status, facts["lag"], facts["places"][0]["floor"]) == (0, 2, 8)
    assert brim(capsys, "ls", *where)[1] == "billing: ordered, 0 consumers, 2 records behind, of a/#\n"
    assert (
        brim(capsys, "reset", "billing", "--to", "1970-01-01T00:00Z", "--ring", "default-0", *where)[0] == 0
    )
    assert json.loads(brim(capsys, "lag", "--json", *where)[1])[0]["lag"] == 10
    assert brim(capsys, "forget", "billing", *where)[1] == "billing is forgotten\n"
    status, _, error = brim(capsys, "lag", "billing", *where)
    assert (
        status,
        "there is no group billing" in error,
        "a group begins with its first consumer" in error,
    ) == (4, True, True)


def test_keys_of_zeromq_change_nothing_for_consumers_of_this_machine(runtime_directory, tmp_path, capsys):
    zmq.auth.create_certificates(tmp_path, "broker")
    keys = f'[zmq]\nsecret_key_file = "{tmp_path}/broker.key_secret"\nclient_keys_dir = "{tmp_path}"\n'
    with BrimProcess(runtime_directory, tmp_path, keys, bridge=False):
        publish([(Letter("a/1"), b"x")], runtime_dir=runtime_directory)
        with consumer("billing", "a/#", start="oldest", runtime_dir=runtime_directory) as records:
            assert records.read(20.0) is not None
        status, said, error = brim(capsys, "ls", "--runtime-dir", runtime_directory)
        assert (status, said.partition(":")[0], error) == (0, "billing", "")
        assert stat.S_IMODE((runtime_directory / "consumers.sock").stat().st_mode) == 0o660
        assert not stat.S_IMODE(runtime_directory.stat().st_mode) & 0o007


def test_keys_are_given_for_an_endpoint_that_requires_them(runtime_directory, tmp_path, capsys):
    for name in ("broker", "app"):
        zmq.auth.create_certificates(tmp_path, name)
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    keys = f'[zmq]\nsecret_key_file = "{tmp_path}/broker.key_secret"\nclient_keys_dir = "{tmp_path}"\n'
    with BrimProcess(
        runtime_directory, tmp_path, f'{keys}[consumers]\nendpoint = "{endpoint}"\n', bridge=False
    ):
        where = ("ls", "--endpoint", endpoint)
        own = ("--secret-key", tmp_path / "app.key_secret")
        status, said, _ = brim(capsys, *where, *own, "--server-key", tmp_path / "broker.key")
        assert (status, said) == (0, "there are no groups of consumers\n")
        status, _, error = brim(capsys, *where)
        assert (status, f"{endpoint} requires CURVE keys" in error, "--secret-key" in error) == (
            3,
            True,
            True,
        )
        status, _, error = brim(capsys, *where, *own)
        assert (status, "--server-key is missing" in error) == (2, True)
        status, _, error = brim(capsys, *where, *own, "--server-key", tmp_path / "none")
        assert (status, str(tmp_path / "none") in error) == (2, True)


def test_settings_of_a_group_are_changed_and_shown_with_their_source(broker, capsys):
    where = ("--runtime-dir", broker.runtime_dir)
    options = {"lease_s": 45.0, "tries_max": 3, "runtime_dir": broker.runtime_dir}
    with consumer("billing", "a/#", **options):
        assert brim(capsys, "set", "billing", "--lease", "2min", "--backoff", "500ms", *where)[0] == 0
        _, said, _ = brim(capsys, "lag", "billing", *where)
        assert (
            "  lease 2 min (set by operator), tries 3 (set by members), "
            "back-off 500 ms (set by operator) to 1 min\n"
        ) in said
        with pytest.raises(Refused, match="members of group billing have lease_ms 45000, not 46000"):
            consumer("billing", "a/#", **{**options, "lease_s": 46}).__enter__()
    status, said, _ = brim(capsys, "set", "billing", "--lease", "default", "--json", *where)
    (facts,) = json.loads(said)
    assert (status, facts["settings"]["lease_ms"]) == (0, {"value": 45_000, "source": "members"})
    assert facts["settings"]["backoff_ms"] == {"value": 500, "source": "operator"}
    assert "replay" not in brim(capsys, "lag", "billing", *where)[1]
    _, said, _ = brim(capsys, "set", "billing", "--speed", "0.5", *where)
    assert ", replay at 0.5 times the original speed (set by operator)\n" in said
    assert "replay" not in brim(capsys, "set", "billing", "--speed", "0", *where)[1]
    status, _, error = brim(capsys, "set", "billing", *where)
    assert (status, "name a setting: --lease, --tries" in error) == (2, True)
    status, _, error = brim(capsys, "set", "none", "--tries", "0", *where)
    assert (status, "there is no group none" in error) == (4, True)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--lease", "0"), "'0' is 0 (allowed for lease_ms: 1 to 3600000)"),
        (("--lease", "2h"), "'2h' is 7200000 (allowed for lease_ms: 1 to 3600000)"),
        (("--tries", "1001"), "'1001' is 1001 (allowed for tries_max: 0 to 1000)"),
        (("--tries", "many"), "'many' is not a whole number"),
        (("--backoff", "soon"), "invalid duration"),
        (("--speed", "nan"), "invalid speed 'nan' (allowed: 0.001 to 1,000,000)"),
        (("--speed", "1e7"), "invalid speed '1e7'"),
    ],
)
def test_a_setting_outside_of_its_limits_is_refused(words, error, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["consumers", "set", "billing", *words])
    assert ended.value.code == 2
    assert error in capsys.readouterr().err


def test_a_consumer_checks_its_settings_before_it_connects():
    for options, text in (
        ({"lease_s": 0}, r"invalid lease_s 0 \(allowed: 0.001 to 3600.0\)"),
        ({"tries_max": -1}, r"invalid tries_max -1 \(allowed: 0 to 1000\)"),
        ({"backoff_s": float("nan")}, "invalid backoff_s nan"),
        ({"backoff_max_s": float("inf")}, "invalid backoff_max_s inf"),
        ({"speed": float("nan")}, "invalid speed nan"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            consumer("billing", "a/#", **options)


@pytest.mark.parametrize(
    ("letters", "text"),
    [
        ([], r"invalid number of letters 0 \(allowed: 1 to 1024\)"),
        ([Letter("a")] * 1025, r"invalid number of letters 1025 \(allowed: 1 to 1024\)"),
        ([Letter("a", qos=5)], r"invalid qos 5 \(allowed: 0 to 2\)"),
        ([Letter("a", not_before_ns=-1)], r"invalid not_before_ns -1 \(allowed: 0 to 9223372036854775807\)"),
        ([Letter("a", not_before_ns=1 << 63)], "invalid not_before_ns 9223372036854775808"),
    ],
)
def test_letters_are_checked_before_they_are_sent(letters, text, runtime_directory):
    with pytest.raises(InvalidArgument, match=text):
        publish([(letter, b"") for letter in letters], runtime_dir=runtime_directory, timeout_s=0.1)


def test_without_a_broker_it_says_so(runtime_directory, capsys, monkeypatch):
    monkeypatch.setattr("edge.consumers.client_socket.CONNECT_TIMEOUT_S", 0.1)
    status, _, error = brim(capsys, "ls", "--runtime-dir", runtime_directory)
    assert (status, "no broker serves consumers" in error) == (3, True)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("oldest", ("oldest", 0)),
        ("latest", ("latest", 0)),
        ("17", ("offset", 17)),
        ("1970-01-01T00:00:01Z", ("time", 10**9)),
        ("1970-01-01T01:00:00.5+01:00", ("time", 5 * 10**8)),
        ("1970-01-01T00:00Z", ("time", 0)),
    ],
)
def test_a_place_can_be_said_in_these_ways(text, place):
    assert place_in_words(text) == place


@pytest.mark.parametrize("text", ["", "-1", "soon", "2026-13-01", "9" * 30])
def test_what_is_no_place_is_refused(text):
    with pytest.raises(EdgeError, match="invalid --to"):
        place_in_words(text)


@pytest.mark.parametrize("text", ["1960-01-01T00:00:00Z", "9999-12-31T23:59", "0001-01-01"])
def test_a_time_that_the_broker_cannot_have_is_refused_with_the_limits(text):
    with pytest.raises(
        EdgeError, match=rf"invalid time {text[:16]}.* \(allowed: 1970-01-01T00:00:00Z to 2262-"
    ):
        place_in_words(text)


@pytest.mark.parametrize("denied", ["socket", "directory"])
def test_a_socket_that_is_another_users_is_told_apart_from_none(
    runtime_directory, capsys, monkeypatch, denied
):
    """Root may open every socket and directory, so the answers of the kernel are given here."""
    stat_of_path = os.stat

    def stat_of(path, **options):
        if Path(path).parent != runtime_directory:
            return stat_of_path(path, **options)
        if denied == "directory":
            raise PermissionError(errno.EACCES, "Permission denied")
        return stat_of_path(runtime_directory)

    monkeypatch.setattr("edge.consumers.client_socket.CONNECT_TIMEOUT_S", 0.1)
    monkeypatch.setattr("edge.consumers.client_socket.os.stat", stat_of)
    monkeypatch.setattr("edge.consumers.client_socket.os.access", lambda *_: False)
    status, _, error = brim(capsys, "ls", "--runtime-dir", runtime_directory)
    assert (status, "may not talk to this broker" in error, "join the group" in error) == (4, True, True)
