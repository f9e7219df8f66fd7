"""SCRAM-SHA-256 (RFC 5802, RFC 7677), the server's side: a proof of the password without sending it.

    client  n,,n=user,r=CLIENT_NONCE                         in CONNECT
    server  r=CLIENT_NONCE SERVER_NONCE,s=SALT,i=ITERATIONS  in AUTH
    client  c=biws,r=BOTH_NONCES,p=PROOF                     in AUTH
    server  v=SIGNATURE                                      in CONNACK: the server knows the password too

Owns one exchange each; no I/O and no slow hash, so every step is answered at once. Channel binding is not
supported. An unknown user gets a salt too, always the same, and is refused at the proof like a known one: no
answer reveals which accounts exist.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
from collections.abc import Callable, Mapping

from edge.auth.interfaces import AuthStep, ClientInfo
from edge.auth.password_file import User, check_name
from edge.auth.saslprep import saslprep
from edge.auth.scram_keys import (
    ITERATIONS,
    MESSAGE_MAX_BYTES,
    METHOD,
    SALT_BYTES,
    ScramKeys,
    hashed,
    keyed,
)

NONCE_BYTES = 24
_ESCAPE = re.compile(r"=(?!2C|3D)")
_FIRST = re.compile(
    r"(?P<header>[ny],(?P<other>a=[^,]*)?,)(?P<bare>n=(?P<name>[^,]*),r=(?P<nonce>[!-+\--~]+))"
)
_FINAL = re.compile(r"(?P<bare>c=(?P<header>[^,]*),r=(?P<nonce>[!-+\--~]+)),p=(?P<proof>[^,]+)")
REFUSED = AuthStep("refused")


class ScramAuthenticator:
    """The method SCRAM-SHA-256 for the users of a password file. On the broker's thread."""

    def __init__(
        self,
        users: Mapping[str, User],
        secret: bytes,
        *,
        nonce: Callable[[], str] = lambda: secrets.token_urlsafe(NONCE_BYTES),
    ) -> None:
        """Create the method. `secret` makes salts of unknown users: keep it as long as the password file."""
        self._secret = secret
        self._nonce = nonce
        self.replace(users)

    @property
    def methods(self) -> frozenset[str]:
        """SCRAM-SHA-256, if at least one user has keys for it."""
        return frozenset({METHOD}) if self._iterations else frozenset()

    def replace(self, users: Mapping[str, User]) -> None:
        """Use `users` from now on. Exchanges under way keep their keys."""
        self._users = users
        # kept, because a client of an unknown name would otherwise cost a search of all users
        self._iterations = [user.scram.iterations for user in users.values() if user.scram]

    def begin(self, client: ClientInfo, method: str) -> _ScramExchange:
        """Begin an exchange with `client`, which must authenticate as the user of its CONNECT, if any."""
        assert method == METHOD
        return _ScramExchange(self, client.username, self._nonce)

    def keys_of(self, name: str) -> tuple[ScramKeys, bool]:
        """Keys of `name`, and True if there is such a user; otherwise keys without a password."""
        user = self._users.get(name)
        if user and user.scram:
            return user.scram, True
        derived = keyed(self._secret, name.encode("utf-8", "surrogatepass"))
        like = self._iterations or [ITERATIONS]
        return ScramKeys(
            like[derived[-1] % len(like)], derived[:SALT_BYTES], hashed(derived), hashed(derived)
        ), False


class _ScramExchange:
    """Two messages of one client, in order."""

    def __init__(self, scram: ScramAuthenticator, username: str | None, nonce: Callable[[], str]) -> None:
        self._scram = scram
        self._username = username
        self._make_nonce = nonce
        self._header = self._name = self._nonce = self._first = ""
        self._over = False

    def answer(self, data: bytes | None) -> AuthStep:
        """Next step. An invalid message is refused, and ends the exchange."""
        step = REFUSED
        if not self._over and data is not None and len(data) <= MESSAGE_MAX_BYTES:
            try:
                step = self._last(data.decode()) if self._first else self._start(data.decode())
            except (ValueError, binascii.Error):  # not UTF-8, not base64, or a forbidden character
                step = REFUSED
        self._over = step.verdict != "continue"
        return step

    def _start(self, message: str) -> AuthStep:
        match = _FIRST.fullmatch(message)
        if match is None or _ESCAPE.search(
            match["name"]
        ):  # p=: channel binding is not supported; m=: no extensions
            return REFUSED
        name = saslprep(match["name"].replace("=2C", ",").replace("=3D", "="))
        check_name(name)
        if (match["other"] or f"a={match['name']}") != f"a={match['name']}":
            return REFUSED  # authorization as another user is not supported
        if self._username is not None and self._username != name:
            return REFUSED
        keys, _ = self._scram.keys_of(name)
        self._header, self._name, self._nonce = match["header"], name, match["nonce"] + self._make_nonce()
        challenge = f"r={self._nonce},s={base64.b64encode(keys.salt).decode()},i={keys.iterations}"
        self._first = f"{match['bare']},{challenge}"
        self._keys = keys
        return AuthStep("continue", challenge.encode())

    def _last(self, message: str) -> AuthStep:
        match = _FINAL.fullmatch(message)
        if match is None or match["nonce"] != self._nonce:
            return REFUSED
        if base64.b64decode(match["header"], validate=True) != self._header.encode():
            return REFUSED
        signed = f"{self._first},{match['bare']}".encode()
        proof = base64.b64decode(match["proof"], validate=True)
        signature = keyed(self._keys.stored_key, signed)
        if len(proof) != len(signature):
            return REFUSED
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        known = self._scram.keys_of(self._name) == (self._keys, True)  # the user still has these keys
        if not hmac.compare_digest(hashed(client_key), self._keys.stored_key) or not known:
            return REFUSED
        verifier = base64.b64encode(keyed(self._keys.server_key, signed))
        return AuthStep("accepted", b"v=" + verifier, self._name)
