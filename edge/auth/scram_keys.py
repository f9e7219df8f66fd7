"""SCRAM keys: the stored form of a password for SCRAM-SHA-256 (RFC 5802, RFC 7677).

    SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY      base64; the notation of PostgreSQL

Pure functions. The stored keys verify a proof; they do not suffice to log in elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass

from edge.auth.saslprep import saslprep

METHOD = "SCRAM-SHA-256"
PREFIX = f"{METHOD}$"
ITERATIONS = 15_000  # RFC 7677 requires 4,096 at least, and prefers 15,000; the client computes them
ITERATIONS_MAX = 10_000_000
SALT_BYTES = 16
KEY_BYTES = 32
# A name and a nonce. The broker's thread computes the normal form of the name before the login: 1 ms at most,
# but more than 50 ms for 8 KiB.
MESSAGE_MAX_BYTES = 1_024
NAME_MAX_BYTES = 768  # as it is in a message; the rest is for the nonce of the client


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """Stored keys of one password."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __str__(self) -> str:
        salt, stored, server = (
            base64.b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"{PREFIX}{self.iterations}:{salt}${stored}:{server}"


def check_scram_name(name: str) -> None:
    """Check that a client can send the user name in its first message. Raises ValueError."""
    sent = saslprep(name).replace("=", "=3D").replace(",", "=2C").encode()
    if len(sent) > NAME_MAX_BYTES:
        raise ValueError(f"it has {len(sent)} bytes in a message, {NAME_MAX_BYTES} are allowed")


def make_keys(password: str, *, salt: bytes | None = None, iterations: int = ITERATIONS) -> ScramKeys:
    """Compute the keys of `password`, with a new salt. Raises ValueError for a forbidden character."""
    salt = salt or secrets.token_bytes(SALT_BYTES)
    salted = hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, iterations)
    return ScramKeys(iterations, salt, hashed(keyed(salted, b"Client Key")), keyed(salted, b"Server Key"))


def parse_keys(text: str) -> ScramKeys:
    """Parse stored keys. Raises ValueError, whose message does not quote `text`."""
    parts = text.split("$")
    if len(parts) != 3 or parts[0] != METHOD or any(part.count(":") != 1 for part in parts[1:]):
        raise ValueError(f"{METHOD} is written {METHOD}$iterations:salt$stored key:server key")
    iterations, _, salt = parts[1].partition(":")
    stored, _, server = parts[2].partition(":")
    count = int(iterations) if iterations.isascii() and iterations.isdigit() else 0
    if not 1 <= count <= ITERATIONS_MAX:
        raise ValueError(f"{METHOD} needs a number of iterations from 1 to {ITERATIONS_MAX}")
    try:
        decoded = [base64.b64decode(part, validate=True) for part in (salt, stored, server)]
    except (binascii.Error, ValueError):
        raise ValueError("salt and keys are base64") from None
    if len(decoded[1]) != KEY_BYTES or len(decoded[2]) != KEY_BYTES:
        raise ValueError(f"both keys have {KEY_BYTES} bytes")
    return ScramKeys(count, *decoded)


def hashed(data: bytes) -> bytes:
    """H() of the RFC."""
    return hashlib.sha256(data).digest()


def keyed(key: bytes, data: bytes) -> bytes:
    """HMAC() of the RFC."""
    return hmac.digest(key, data, "sha256")
