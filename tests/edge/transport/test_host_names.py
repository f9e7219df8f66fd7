"""Host headers that a listener answers to, and those of pages that resolve their own name to this machine."""

import socket

import pytest

from edge.transport.host_names import HostNames, host_of

MACHINE = socket.gethostname().lower()


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("localhost:8083", "localhost"),
        ("LocalHost.", "localhost"),
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]:8083", "::1"),
        ("evil.example:80", "evil.example"),
        ("", ""),
        ("[", ""),
        ("[::1", ""),
        ("localhost@evil.example", "evil.example"),
        ("localhost/evil", "localhost"),
        ("evil.example#localhost", "evil.example"),
    ],
)
def test_a_header_is_a_name_and_perhaps_a_port(header: str, host: str) -> None:
    assert host_of(header) == host


@pytest.mark.parametrize(
    ("bound", "accepted", "refused"),
    [
        ("127.0.0.1", ["localhost", "127.0.0.1", "127.8.8.8", "::1"], ["192.0.2.7", "10.0.0.1", MACHINE]),
        ("localhost", ["localhost", "127.0.0.1", "::1"], ["192.0.2.7"]),
        ("::1", ["localhost", "127.0.0.1", "::1"], ["192.0.2.7"]),
        ("192.0.2.7", ["192.0.2.7", MACHINE], ["192.0.2.8", "localhost", "127.0.0.1"]),
        ("0.0.0.0", ["192.0.2.7", "localhost", "127.0.0.1", "::1", MACHINE], []),
        ("::", ["192.0.2.7", "localhost", "2001:db8::1", MACHINE], []),
        ("broker.plant.example", ["broker.plant.example", MACHINE], ["localhost"]),
    ],
)
def test_a_listener_has_the_names_of_its_address(bound: str, accepted: list[str], refused: list[str]) -> None:
    names = HostNames(bound)
    assert [host for host in accepted if not names.accept(host)] == []
    evil = ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", ""]
    assert [host for host in (*refused, *evil) if names.accept(host)] == []


def test_configured_names_are_accepted_too() -> None:
    names = HostNames("127.0.0.1", ["Panel.Plant.example"])
    assert names.accept("panel.plant.example")
    assert not names.accept("plant.example")
    assert HostNames("127.0.0.1", ["*"]).accept("evil.example")
    assert not HostNames("127.0.0.1", ["*"]).accept("")
