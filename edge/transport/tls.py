"""TLS certificates: from the files of a listener to a context for handshakes; a reload reads them again.

Owns the error texts for invalid files. Never connects to another process: a handshake with itself, in memory,
shows if clients will accept the broker's certificate today. That finds more than a check of the dates.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from edge.config.listener import Tls
from edge.config.regular_file import require_regular
from edge.engine.tls_context import TlsContext
from edge.errors import EdgeError

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
HANDSHAKE_TURNS = 10  # far more than TLS takes


class Certificates:
    """Certificate and authorities of a listener, from its files at the last read."""

    def __init__(self, settings: Tls) -> None:
        """Read the files. Raises EdgeError, which names the file."""
        self._settings = settings
        self.file = settings.certificate_file
        self.context = _context(settings)

    def read(self) -> TlsContext:
        """A context of the files as they are now, not in use yet. Raises EdgeError, which names the file."""
        return _context(self._settings)

    def problem(self) -> str:
        """Reason why clients will refuse the certificate, for example expired; "" if none is known."""
        return _refusal(self._settings)


def server_context(settings: Tls) -> ssl.SSLContext:
    """Context for a server in Python. Raises EdgeError, which names the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[settings.version_min]
    _load_key(context, settings)
    if settings.client_ca_file is not None:
        required = settings.require_client_certificate
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        try:
            require_regular(settings.client_ca_file)
            context.load_verify_locations(settings.client_ca_file)
        except (OSError, ssl.SSLError) as error:
            raise EdgeError(
                f"tls.client_ca_file {settings.client_ca_file}: {_words(error)}",
                hint="it must hold the certificates of authorities, in PEM",
            ) from error
    return context


def _context(settings: Tls) -> TlsContext:
    """Context for the C loop. The same files are read by `ssl` first, whose errors say more."""
    server_context(settings)
    try:
        return TlsContext(
            settings.certificate_file,
            settings.key_file,
            settings.client_ca_file,
            require_client_certificate=settings.require_client_certificate,
            version_min=VERSIONS[settings.version_min],
        )
    except OSError as error:
        raise EdgeError(
            f"TLS with tls.certificate_file {settings.certificate_file}: {error}",
            hint="install OpenSSL 3 (on Debian: libssl3), and keep the files unchanged while they are read",
        ) from error


def _load_key(context: ssl.SSLContext, settings: Tls) -> None:
    for key in ("certificate_file", "key_file"):
        try:
            require_regular(getattr(settings, key))
            Path(getattr(settings, key)).read_bytes()
        except OSError as error:
            text = f"tls.{key} {getattr(settings, key)}: {error.strerror}"
            raise EdgeError(text, hint="correct the path, or let the broker's user read it") from error
    try:
        context.load_cert_chain(settings.certificate_file, settings.key_file, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        raise EdgeError(
            f"tls.certificate_file {settings.certificate_file} and tls.key_file {settings.key_file}: "
            f"{_words(error)}",
            hint="the key must be that of the first certificate, both in PEM, the key not encrypted",
        ) from error


def _words(error: OSError) -> str:
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key belongs to another certificate"
    if isinstance(error, ssl.SSLError):
        return f"no PEM that can be read ({reason or error.args[-1]})"
    return error.strerror or str(error)


def _refusal(settings: Tls) -> str:
    """Result of verification when the certificate itself is trusted: dates, purpose, signature."""
    ours, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load_key(ours, settings)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(settings.certificate_file)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server)
    server = ours.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(HANDSHAKE_TURNS):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return str(error.verify_message)
            except ssl.SSLError as error:
                return str(error.reason)
            if side is client:
                return ""
    return "no handshake with it comes to an end"
