"""TLS of the C loop: contexts for handshakes, and the certificates that clients have shown.

A context owns an SSL_CTX of the OpenSSL that Python's `ssl` has loaded (ringbuf/c/mqtt/transport/openssl.h).
Decides nothing: edge/transport/tls.py checks files and describes their errors.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.engine.engine import listener_of
from ringbuf.native import ffi, lib

if TYPE_CHECKING:
    from edge.engine.engine import Engine

CERTIFICATE_BYTES = 2_048  # room for a certificate of the usual length


def _load() -> str:
    """Find OpenSSL. Returns the reason if that fails, otherwise ""."""
    file = getattr(sys.modules[ssl.SSLContext.__mro__[1].__module__], "__file__", None)
    reason = lib.mq_tls_load(ffi.NULL if file is None else file.encode())
    return "" if reason == ffi.NULL else ffi.string(reason).decode()


_MISSING = _load()  # once: an import is done by one thread


class TlsContext:
    """Context of a listener. Connections that it has begun outlive it."""

    def __init__(
        self,
        certificate_file: Path,
        key_file: Path,
        client_ca_file: Path | None,
        *,
        require_client_certificate: bool,
        version_min: ssl.TLSVersion,
    ) -> None:
        """Read the files. Raises OSError: OpenSSL is missing, or a file is invalid."""
        if _MISSING:
            raise OSError(_MISSING)
        paths = [
            ffi.new("char[]", str(file).encode()) if file is not None else ffi.NULL
            for file in (certificate_file, key_file, client_ca_file)
        ]
        files = ffi.new("mq_tls_files *", (*paths, require_client_certificate, int(version_min)))
        reason = ffi.new("char[]", lib.MQ_TLS_REASON_BYTES)
        context = lib.mq_tls_context_new(files, reason)
        if context == ffi.NULL:
            raise OSError(ffi.string(reason).decode(errors="replace"))
        self._c: Any = ffi.gc(context, lib.mq_tls_context_free)

    def use(self, engine: Engine, listener: int) -> None:
        """Begin later connections of the listener with this number in this context. For any thread."""
        lib.mq_tls_context_use(listener_of(engine, listener), self._c)


def certificate_of(engine: Engine, connection: int) -> tuple[str | None, bytes] | None:
    """Name in the verified certificate of a TLS client, and the certificate in DER. None: it has shown none.

    On the thread of the engine.
    """
    der = _bytes_of(lib.mq_engine_certificate, engine, connection)
    if not der:
        return None
    name = _bytes_of(lib.mq_engine_certificate_name, engine, connection)
    return name.decode() or None, der


def _bytes_of(call: Callable[..., int], engine: Engine, connection: int) -> bytes:
    room = CERTIFICATE_BYTES
    while True:
        to = ffi.new("uint8_t[]", room)
        length = call(ffi.cast("mq_engine *", engine.address), connection, to, room)
        if length <= room:
            return bytes(ffi.buffer(to, length))
        room = length
