"""[[listener]]: every mistake it can hold, and `brim check`, which reads the certificates as well."""

import argparse
from pathlib import Path

import pytest

from edge.cli import check
from edge.config.loader import parse
from edge.errors import ConfigError
from tests.support.mqtt_transports import authority

TLS = 'tls = { certificate_file = "c.pem", key_file = "c.key" }\n'
MUTUAL = 'tls = { certificate_file = "c.pem", key_file = "c.key", client_ca_file = "ca.pem" }\n'
MISTAKES = [
    ("tls = true", ":2: listener[0].tls: True is not a table"),
    ('tls = { certificate_file = "c.pem" }', ":2: listener[0].tls.key_file: missing"),
    (
        'tls = { certificate_file = "c", key_file = "k", cafile = "x" }',
        "listener[0].tls.cafile: there is no such",
    ),
    (
        'tls = { certificate_file = "c", key_file = "k", version_min = "1.1" }',
        "tls.version_min: '1.1' is not one of",
    ),
    (
        'transport = "websockets"',
        ":2: listener[0].transport: 'websockets' is not one of mqtt, websocket; did you",
    ),
    (
        'origins = ["https://panel.example"]',
        ":2: listener[0].origins: only browsers name one; add transport =",
    ),
    (
        'transport = "websocket"\norigins = ["panel.example"]',
        ":3: listener[0].origins[0]: 'panel.example' is not",
    ),
    ("certificate_is_user = true", ":2: listener[0].certificate_is_user: no client shows a certificate here"),
    (
        TLS + "certificate_is_user = true",
        ":3: listener[0].certificate_is_user: no client shows a certificate",
    ),
    (
        MUTUAL.replace(" }", ", require_client_certificate = false }") + "certificate_is_user = true",
        ":3: listener[0].certificate_is_user: a client without a certificate has no user name",
    ),
    ('path = "mqtt.sock"\n' + TLS, ":3: listener[0].tls: a Unix socket has no network to protect"),
    ('path = "mqtt.sock"\nproxy_protocol = true', ":3: listener[0].proxy_protocol: a Unix socket has no"),
    ('path = "mqtt.sock"\ntransport = "websocket"', ":3: listener[0].transport: no browser opens a Unix"),
    (f'path = "/{"x" * 107}"', ":2: listener[0].path: /xxx"),
    ("packet_max_bytes = '32 MiB'", ":2: listener[0].packet_max_bytes: 33554432 is above limits.packet_max"),
    ("publish_rate_max = 0", ":2: listener[0].publish_rate_max: 0 is below the least, 1"),
    ('host = "::"', ":2: listener[0].host: :: is reached from other machines, and nobody has to log in"),
    (
        'path = "a"\n[[listener]]\npath = "a"',
        ":3: listener[1]: /base/a is taken by listener[0]; give each its own path",
    ),
    (
        "\n".join(f"port = {i}\n[[listener]]" for i in range(1, 17)) + "\nport = 0",
        "17 listeners are above the limit, 16",
    ),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES)
def test_a_mistake_is_told_on_its_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse("[[listener]]\n" + text, base=Path("/base"))
    assert any(said in problem for problem in error.value.problems), error.value.problems
    assert len(error.value.problems) == 1


def test_mutual_tls_is_login_enough_for_other_machines() -> None:
    config = parse(f'[[listener]]\nhost = "::"\n{MUTUAL}certificate_is_user = true')
    assert config.listener[0].tls is not None
    assert config.listener[0].tls.require_client_certificate
    assert config.listener[0].scheme == "tls"


def checked(directory: Path, tls: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    file = directory / "brim.toml"
    file.write_text(f"[[listener]]\ntls = {{ {tls} }}\n")
    status = check.run(argparse.Namespace(file=file, json=False))
    said = capsys.readouterr()
    return status, said.out + said.err


def test_check_reads_the_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = authority()
    other, _ = good.issue("stranger", "127.0.0.1")
    files = f'certificate_file = "{good.certificate_file}", key_file = "{good.key_file}"'
    assert checked(tmp_path, files, capsys)[0] == 0
    status, said = checked(tmp_path, f'certificate_file = "{other}", key_file = "{good.key_file}"', capsys)
    assert status == 2
    assert (
        f"listener[0]: tls.certificate_file {other} and tls.key_file {good.key_file}: the key belongs" in said
    )
