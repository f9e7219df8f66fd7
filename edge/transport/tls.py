"""TLS certificates: from the files of a listener to a context for handshakes, and back to names.

Owns the error texts for invalid files. Never connects to another process: a handshake with itself, in memory,
shows if clients will accept the broker's certificate today. That finds more than a check of the dates.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from edge.config.listener import Tls
from edge.errors import EdgeError

__all__ = ["Certificates", "certificate_name"]

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
HANDSHAKE_TURNS = 10  # far more than TLS takes


class Certificates:
    """Certificate and authorities of a listener, from its files at the last read."""

    def __init__(self, settings: Tls) -> None:
        """Read the files. Raises EdgeError, which names the file."""
        self._settings = settings
        self.file = settings.certificate_file
        self.context = _context(settings)

    def reload(self) -> None:
        """Read the files again, for later handshakes. Raises EdgeError; the old certificate stays then."""
        self.context = _context(self._settings)

    def problem(self) -> str:
        """Reason why clients will refuse the certificate, for example expired; "" if none is known."""
        return _refusal(self._settings)


def _context(settings: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[settings.version_min]
    # Renegotiation costs the server more than the client, and no client needs it. Compression leaks plain
    # text.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    _load_key(context, settings)
    if settings.client_ca_file is not None:
        must = settings.require_client_certificate
        context.verify_mode = ssl.CERT_REQUIRED if must else ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(settings.client_ca_file)
        except (OSError, ssl.SSLError) as error:
            raise EdgeError(
                f"tls.client_ca_file {settings.client_ca_file}: {_words(error)}",
                hint="it must hold the certificates of authorities, in PEM",
            ) from error
    return context


def _load_key(context: ssl.SSLContext, settings: Tls) -> None:
    for key in ("certificate_file", "key_file"):
        try:
            Path(getattr(settings, key)).read_bytes()
        except OSError as error:
            text = f"tls.{key} {getattr(settings, key)}: {error.strerror}"
            raise EdgeError(text, hint="mend the path, or let the broker's user read it") from error
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


def certificate_name(peer: dict[str, Any] | None) -> str | None:
    """Common name in a verified certificate (ssl.SSLSocket.getpeercert()), otherwise its first alternative
    name.

    None: there is no certificate, or no name in it.
    """
    if not peer:
        return None
    for parts in peer.get("subject", ()):
        for key, value in parts:
            if key == "commonName" and value and "\0" not in value:
                return str(value)
    names = [value for kind, value in peer.get("subjectAltName", ()) if kind in {"DNS", "email", "URI"}]
    return names[0] if names else None
