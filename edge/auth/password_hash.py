"""Password hashes: the text form of a stored password, and its verification.

Owns no users and no files. Forms:

    $argon2id$v=19$m=19456,t=2,p=1$SALT$HASH   argon2, unpadded base64; the default for new hashes
    $7$ITERATIONS$SALT$HASH                    PBKDF2 with SHA-512, base64; as mosquitto_passwd writes it
    $6$SALT$HASH                               one SHA-512 of password and salt; Mosquitto before 2.0

Comparisons take constant time. All checks release the GIL while they compute.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Literal, Protocol

HashKind = Literal["argon2id", "pbkdf2"]
HASH_KINDS: tuple[HashKind, ...] = ("argon2id", "pbkdf2")

# 19 MiB and two passes: the minimum recommended for argon2id, so that a small machine can check two at once.
# About 30 ms.
ARGON2_MEMORY_KIB, ARGON2_PASSES = 19 * 1024, 2
PBKDF2_ITERATIONS = 10_000  # about 20 ms; mosquitto_passwd itself uses 101
ITERATIONS_MAX = 10_000_000  # about 10 s: more is a typing mistake
SALT_BYTES = 16
PBKDF2_SALT_BYTES = 12  # Mosquitto 2.0 ignores users with a salt of another length
SHA512_BYTES = 64


class PasswordHash(Protocol):
    """A stored password."""

    def fits(self, password: bytes) -> bool:
        """True if this is the hash of `password`. Slow on purpose; any thread."""


@dataclass(frozen=True, slots=True)
class _Argon2:
    text: str

    def fits(self, password: bytes) -> bool:
        from argon2.exceptions import VerificationError
        from argon2.low_level import Type, verify_secret

        try:
            return verify_secret(self.text.encode(), password, Type.ID)
        except VerificationError:
            return False


@dataclass(frozen=True, slots=True)
class _Pbkdf2:
    iterations: int
    salt: bytes
    digest: bytes

    def fits(self, password: bytes) -> bool:
        computed = hashlib.pbkdf2_hmac("sha512", password, self.salt, self.iterations)
        return hmac.compare_digest(computed, self.digest)


@dataclass(frozen=True, slots=True)
class _Sha512:
    salt: bytes
    digest: bytes

    def fits(self, password: bytes) -> bool:
        return hmac.compare_digest(hashlib.sha512(password + self.salt).digest(), self.digest)


def make_hash(password: bytes, kind: HashKind = "argon2id") -> str:
    """Hash `password` with a new salt, and return the text form."""
    if kind == "argon2id":
        from argon2.low_level import Type, hash_secret

        hashed = hash_secret(
            password,
            secrets.token_bytes(SALT_BYTES),
            time_cost=ARGON2_PASSES,
            memory_cost=ARGON2_MEMORY_KIB,
            parallelism=1,
            hash_len=32,
            type=Type.ID,
        )
        return hashed.decode()
    salt = secrets.token_bytes(PBKDF2_SALT_BYTES)
    digest = hashlib.pbkdf2_hmac("sha512", password, salt, PBKDF2_ITERATIONS)
    return f"$7${PBKDF2_ITERATIONS}${_base64(salt)}${_base64(digest)}"


def parse_hash(text: str) -> PasswordHash:
    """Parse a stored password. Raises ValueError, whose message does not quote `text`."""
    if text.startswith("$argon2"):
        return _argon2(text)
    match text.split("$"):
        case ["", "7", iterations, salt, digest]:
            count = int(iterations) if iterations.isascii() and iterations.isdigit() else 0
            if not 1 <= count <= ITERATIONS_MAX:
                raise ValueError(f"$7$ needs a number of iterations from 1 to {ITERATIONS_MAX}")
            return _Pbkdf2(count, _bytes(salt, "salt"), _digest(digest))
        case ["", "6", salt, digest] if len(digest) != 86:  # crypt(3) writes 86 characters, in its own base64
            return _Sha512(_bytes(salt, "salt"), _digest(digest))
        case ["", "6", *_]:
            raise ValueError(
                "a $6$ hash of crypt(3) cannot be checked here; set a new password with `brim passwd`"
            )
    raise ValueError("no hash of a known kind ($argon2id$, $7$, $6$); make one with `brim passwd`")


def _argon2(text: str) -> _Argon2:
    from argon2 import extract_parameters
    from argon2.exceptions import InvalidHashError
    from argon2.low_level import Type

    try:
        if extract_parameters(text).type is not Type.ID:
            raise ValueError("argon2i and argon2d are not for passwords; make an argon2id hash")
    except InvalidHashError:
        raise ValueError("the argon2 hash is damaged") from None
    return _Argon2(text)


def _digest(text: str) -> bytes:
    digest = _bytes(text, "hash")
    if len(digest) != SHA512_BYTES:
        raise ValueError(f"the hash has {len(digest)} bytes instead of {SHA512_BYTES}")
    return digest


def _bytes(text: str, field: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"the {field} is not base64") from None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
