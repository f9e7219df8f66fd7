"""Bearer token of the HTTP endpoint: reads it from a file, and compares requests with it in constant time."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from edge.errors import EdgeError

TOKEN_MIN = 16  # characters
TOKEN_FILE_MAX_BYTES = 4096


class TokenFile:
    """Token in the first line of a file. A file that is replaced is read again at the next request."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises EdgeError."""
        self._path = path
        self._seen = self._state()
        self._digest = self._read()

    def accepts(self, authorization: list[str]) -> bool:
        """True if the request has one Authorization header, and this header has the token.

        Raises EdgeError if the file has become invalid.
        """
        if (state := self._state()) != self._seen:
            self._digest, self._seen = self._read(), state
        scheme, _, given = (authorization[0] if len(authorization) == 1 else "").partition(" ")
        digest = hashlib.sha256(given.strip().encode("latin-1")).digest()
        return hmac.compare_digest(digest, self._digest) and scheme.lower() == "bearer"

    def _state(self) -> tuple[int, int, int]:
        try:
            status = self._path.stat()
        except OSError as error:
            raise self._invalid(error.strerror) from error
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                token = file.read(TOKEN_FILE_MAX_BYTES).partition(b"\n")[0].strip()
        except OSError as error:
            raise self._invalid(error.strerror) from error
        if len(token) < TOKEN_MIN:
            raise self._invalid(f"the token has {len(token)} characters (at least {TOKEN_MIN})")
        return hashlib.sha256(token).digest()

    def _invalid(self, reason: str | None) -> EdgeError:
        hint = f"write one with `openssl rand -hex 32 > {self._path}`, readable by the broker's user"
        return EdgeError(f"metrics.token_file {self._path}: {reason}", hint=hint)
