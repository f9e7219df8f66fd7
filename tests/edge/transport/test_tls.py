"""TLS: who is let in, who they are, which files are wrong, and when certificates change."""

import ssl
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import trustme

from edge.config.listener import Tls
from edge.errors import EdgeError
from edge.mqtt import ConnAck, Connect, encode
from edge.transport.tls import Certificates
from tests.support.mqtt_transports import Transports, authority, transports
from tests.support.recording_authenticator import RecordingAuthenticator
from tests.support.waiting import wait_until

CLERK = RecordingAuthenticator()


@pytest.fixture(scope="module")
def there() -> Iterator[Transports]:
    with transports("tls", "mtls", authenticator=CLERK) as there:
        yield there


def shaken(there: Transports, kind: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    return context.wrap_socket(there.dial(kind), server_hostname="127.0.0.1")


def test_the_name_in_a_client_certificate_is_known(there: Transports) -> None:
    with there.client("mtls", username="u"):
        facts = CLERK.seen[-1]
        assert (facts.transport, facts.certificate, facts.username) == ("tls", "press-7", "u")
        pem, end, _ = authority().client_certificate_file.read_text().partition(ssl.PEM_FOOTER)
        shown = ssl.PEM_cert_to_DER_cert(pem + end)
        assert facts.certificate_der == shown
    with there.client("tls", username="u"):
        assert CLERK.seen[-1].certificate is None
        assert CLERK.seen[-1].certificate_der is None


def test_the_name_may_be_the_user_name_and_then_no_password_is_asked() -> None:
    with transports("mtls", listener={"certificate_is_user": True}) as there, there.client("mtls") as client:
        assert client.socket.fileno() > 0
        (session,) = there.there.ask(lambda: list(there.there.listener.broker.sessions))
        assert session.client_info.identity == "press-7"


def test_without_a_certificate_of_our_authority_nobody_gets_in(there: Transports) -> None:
    stranger = trustme.CA().issue_cert("stranger@example.org")
    context = authority().context()
    stranger.configure_cert(context)
    for shown in (authority().context(), context):
        before = there.there.stats.closed()["protocol"]
        with pytest.raises((ssl.SSLError, ConnectionError)), shaken(there, "mtls", shown) as client:
            client.sendall(encode(Connect("c")))
            if not client.recv(100):
                raise ConnectionError
        wait_until(partial(_refused, there, before + 1))


def _refused(there: Transports, count: int) -> bool:
    return there.there.stats.closed()["protocol"] == count


def test_old_versions_are_refused(there: Transports) -> None:
    context = authority().context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with shaken(there, "tls", context) as client:
        assert client.version() == "TLSv1.2"
    with (
        transports("tls", listener={"tls": authority().tls(version_min="1.3")}) as strict,
        pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"),
    ):
        shaken(strict, "tls", context)


@pytest.mark.parametrize(
    "data", [encode(Connect("c")), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" * 50]
)
def test_what_is_no_tls_is_closed(there: Transports, data: bytes) -> None:
    with closing(there.dial("tls")) as client:
        client.sendall(data)
        try:
            while client.recv(1_000):
                pass
        except ConnectionResetError:
            pass


def test_a_certificate_that_was_replaced_is_shown_from_then_on(
    there: Transports, caplog: pytest.LogCaptureFixture
) -> None:
    tls = authority()
    before = (tls.certificate_file.read_bytes(), tls.key_file.read_bytes())
    with shaken(there, "tls", tls.context()) as old:
        try:
            made, key = tls.issue("next", "127.0.0.1")
            tls.certificate_file.write_bytes(made.read_bytes())
            there.reload_certificates()  # the key is still the old one
            assert "the key belongs to another certificate" in caplog.text
            with shaken(there, "tls", tls.context()) as client:
                assert client.getpeercert() == old.getpeercert()
            tls.key_file.write_bytes(key.read_bytes())
            there.reload_certificates()
            with shaken(there, "tls", tls.context()) as client:
                assert client.getpeercert() != old.getpeercert()
        finally:
            tls.certificate_file.write_bytes(before[0])
            tls.key_file.write_bytes(before[1])
            there.reload_certificates()
        old.sendall(encode(Connect("c", username="u")))
        assert old.recv(100) == encode(ConnAck())


def test_a_reload_warns_of_a_certificate_that_clients_refuse(
    there: Transports, caplog: pytest.LogCaptureFixture
) -> None:
    tls = authority()
    before = (tls.certificate_file.read_bytes(), tls.key_file.read_bytes())
    past = datetime.now(UTC) - timedelta(days=1)
    late, key = tls.issue("late", "127.0.0.1", not_before=past - timedelta(days=9), not_after=past)
    try:
        tls.certificate_file.write_bytes(late.read_bytes())
        tls.key_file.write_bytes(key.read_bytes())
        assert there.reload_certificates() == []
        assert f"certificate invalid for clients file={tls.certificate_file}" in caplog.text
    finally:
        tls.certificate_file.write_bytes(before[0])
        tls.key_file.write_bytes(before[1])
        there.reload_certificates()


def test_each_wrong_file_is_named(tmp_path: Path) -> None:
    tls = authority()
    other, _ = tls.issue("other", "127.0.0.1")
    text = tmp_path / "notes.txt"
    text.write_text("no certificate")
    nowhere = tmp_path / "nowhere.pem"
    for settings, words in (
        (Tls(nowhere, tls.key_file), f"tls.certificate_file {nowhere}: No such file"),
        (Tls(tls.certificate_file, nowhere), f"tls.key_file {nowhere}: No such file"),
        (Tls(other, tls.key_file), "the key belongs to another certificate"),
        (Tls(text, tls.key_file), "no PEM that can be read"),
        (Tls(tls.certificate_file, tls.key_file, client_ca_file=text), f"tls.client_ca_file {text}"),
        (Tls(tls.certificate_file, tls.key_file, client_ca_file=nowhere), "No such file"),
    ):
        with pytest.raises(EdgeError) as error:
            Certificates(settings)
        assert words in str(error.value)
        assert error.value.hint


def test_what_clients_will_refuse_is_known_before_they_do(tmp_path: Path) -> None:
    tls = authority()
    past = datetime.now(UTC) - timedelta(days=1)
    late, late_key = tls.issue("late", "127.0.0.1", not_before=past - timedelta(days=9), not_after=past)
    early, early_key = tls.issue("early", "127.0.0.1", not_before=past + timedelta(days=9))
    assert Certificates(tls.tls()).problem() == ""
    assert "expired" in Certificates(Tls(late, late_key)).problem()
    assert "not yet valid" in Certificates(Tls(early, early_key)).problem()
