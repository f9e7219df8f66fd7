"""Devices that have a certificate and no password, through mutual TLS, judged by amqtt's own plug-in."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edge.auth.amqtt_compat.adapter import PluginAdapter
from edge.auth.interfaces import ClientInfo
from edge.config.listener import Tls
from edge.mqtt import ConnAck, Connect, ReasonCode
from tests.support.mqtt_socket import RawClient
from tests.support.mqtt_transports import Stream, Transports, transports

CERTIFICATE = "amqtt.contrib.cert.UserAuthCertPlugin"
DOMAIN = "presses.example"


class Factory:
    """An authority that certifies devices as amqtt wants it: by a URI among the alternative names."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ca = trustme.CA()
        self.ca_file = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.ca_file))
        made = self._ca.issue_cert("127.0.0.1")
        self.tls = Tls(directory / "server.pem", directory / "server.key", client_ca_file=self.ca_file)
        made.cert_chain_pems[0].write_to_path(str(self.tls.certificate_file))
        made.private_key_pem.write_to_path(str(self.tls.key_file))

    def context(self, *uris: str) -> ssl.SSLContext:
        """Of a device with these names; none: one that has no certificate."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if uris:
            file = self.directory / "device.pem"
            file.write_bytes(self._device(uris))
            context.load_cert_chain(file)
        return context

    def _device(self, uris: tuple[str, ...]) -> bytes:
        authority = x509.load_pem_x509_certificate(self._ca.cert_pem.bytes())
        authority_key = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "Presses")]))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(authority.not_valid_before_utc)
            .not_valid_after(authority.not_valid_after_utc)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris]), False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False
            )
            .sign(authority_key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        return certificate.public_bytes(pem) + key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


@pytest.fixture(scope="module")
def factory(tmp_path_factory: pytest.TempPathFactory) -> Factory:
    return Factory(tmp_path_factory.mktemp("factory"))


@pytest.fixture
def plugin() -> Iterator[PluginAdapter]:
    made = PluginAdapter([(CERTIFICATE, {"uri_domain": DOMAIN})])
    yield made
    made.close()


@pytest.fixture
def there(factory: Factory, plugin: PluginAdapter) -> Iterator[Transports]:
    settings = {"tls": factory.tls, "allow_anonymous": False}
    with transports("tls", listener=settings, authenticator=plugin.authenticator) as made:
        yield made


def answer(there: Transports, context: ssl.SSLContext, client_id: str) -> ConnAck:
    """CONNACK for a device that gives neither user name nor password."""
    with Stream(context.wrap_socket(there.dial("tls"), server_hostname="127.0.0.1")) as stream:
        client = RawClient(0, stream=stream)
        client.send(Connect(client_id))
        packet = client.packet()
        assert isinstance(packet, ConnAck)
        return packet


def test_a_device_gets_in_by_its_certificate_under_its_own_name_only(there, factory):
    device = factory.context(f"spiffe://{DOMAIN}/device/press-7")
    assert answer(there, device, "press-7") == ConnAck()
    assert answer(there, device, "press-8").reason_code is ReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize(
    "uri", ["spiffe://other.example/device/d", f"spiffe://{DOMAIN}/user/d", f"spiffe://{DOMAIN}/device/d/d"]
)
def test_a_certificate_that_is_no_devices_of_ours_opens_nothing(there, factory, uri):
    assert answer(there, factory.context(uri), "d").reason_code is ReasonCode.NOT_AUTHORIZED


def test_without_a_certificate_there_is_no_connection_at_all(there, factory):
    with pytest.raises((ssl.SSLError, AssertionError)):
        answer(there, factory.context(), "press-7")


def test_where_a_certificate_is_not_required_the_plugin_refuses_who_has_none(factory, plugin):
    tls = Tls(
        factory.tls.certificate_file,
        factory.tls.key_file,
        client_ca_file=factory.ca_file,
        require_client_certificate=False,
    )
    settings = {"tls": tls, "allow_anonymous": False}
    with transports("tls", listener=settings, authenticator=plugin.authenticator) as there:
        assert answer(there, factory.context(), "press-7").reason_code is ReasonCode.NOT_AUTHORIZED
        device = factory.context(f"spiffe://{DOMAIN}/device/press-7")
        assert answer(there, device, "press-7") == ConnAck()


def test_a_stranger_has_no_part_in_the_login_of_a_device(plugin):
    """Topic plug-ins look into a session for its certificate: that of no other client may be found there."""
    who = ClientInfo("press-7", None, "", 0, certificate_der=b"a certificate", verified=True)
    device = plugin.login(who)
    assert device.session.ssl_object.getpeercert(binary_form=True) == b"a certificate"
    stranger = plugin.login(ClientInfo("press-7", None, "", 0))
    assert stranger.session.ssl_object is None
