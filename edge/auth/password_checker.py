"""Password checker: verifies passwords of users of a file on separate threads, because a hash is slow on
purpose.

Owns a short-lived cache of correct passwords, as keyed digests, never as passwords. With it, a fleet of up to
REMEMBERED_MAX devices that reconnects at once costs one hash per device and minute. The queue of the threads
is bounded, and addresses take turns in it (edge.auth.fair_executor). So an address that sends wrong passwords
without end cannot make it grow. It does not delay clients in the cache, and others by one check at most.

An unknown user takes as long as a known one: the password is checked against another user's hash, always the
same for a name, and then refused.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from edge.auth.fair_executor import FairExecutor, origin
from edge.auth.interfaces import Answer, ClientInfo
from edge.auth.password_file import User
from edge.auth.password_hash import PasswordHash
from edge.auth.scram_keys import keyed
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs

log = logging.getLogger(__name__)

THREADS = 2  # each argon2id check takes 19 MiB meanwhile
WAITING_MAX = 1_000  # at 30 ms and two threads, more checks would exceed the connect timeout anyway
REMEMBER_S = 60.0
REMEMBERED_MAX = 20_000
REFUSED_ORIGINS_MAX = 1_000  # addresses that are counted separately


class PasswordChecker:
    """An Authenticator. Call authenticate() and replace() on the broker's thread."""

    def __init__(
        self,
        users: Mapping[str, User],
        *,
        waiting_max: int = WAITING_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # CONNECTs that were refused because the queue was full, by address
        self.refused_busy: Counter[str] = Counter()
        self._clock = clock
        self._waiting_max = waiting_max
        self._lock = threading.Lock()  # of _remembered
        self._turns = FairExecutor(THREADS, waiting_max, "brim-password")
        self._key = secrets.token_bytes(32)
        self._may_log = LogThrottle(clock)
        self.replace(users)

    def replace(self, users: Mapping[str, User], revoked: frozenset[str] = frozenset()) -> None:
        """Use `users` from now on, and clear the cache. For `revoked` see is_still_authorized()."""
        self._users = users
        self.revoked = revoked
        self._hashes = [user.password for user in users.values() if user.password]
        self._remembered: dict[bytes, float] = {}  # digest -> time of expiry

    def knows(self, name: str) -> bool:
        """True if there is such a user, with a password or with SCRAM keys."""
        return name in self._users

    def authenticate(self, client: ClientInfo, password: bytes | None) -> Answer:
        """True if the password is that of the user: at once if the cache has it, otherwise as a Future."""
        name = client.username
        if name is None or password is None:
            return False
        digest = keyed(self._key, name.encode("utf-8", "surrogatepass") + b"\0" + password)
        if self._is_remembered(digest):
            return True
        user = self._users.get(name)
        stored = user.password if user else None
        check = partial(self._check, stored, self._decoy_hash(name), password, digest, self._remembered)
        answer, refused = self._turns.submit(origin(client.address), check)
        if refused is not None:
            self._count_refused(refused)
        return False if answer is None else answer

    def is_still_authorized(self, client: ClientInfo) -> bool:
        """True unless the user was removed or changed since the client's login."""
        return client.identity not in self.revoked

    def close(self) -> None:
        """End the threads; waiting clients are refused."""
        self._turns.close()

    def _check(
        self,
        stored: PasswordHash | None,
        other: PasswordHash | None,
        password: bytes,
        digest: bytes,
        remembered: dict[bytes, float],
    ) -> bool:
        checked = stored or other
        fits = checked is not None and checked.fits(password) and stored is not None
        if fits:
            with self._lock:
                if len(remembered) >= REMEMBERED_MAX:
                    del remembered[next(iter(remembered))]
                remembered[digest] = self._clock() + REMEMBER_S
        return fits

    def _decoy_hash(self, name: str) -> PasswordHash | None:
        """Hash to check for an unknown user `name`: always the same one."""
        if not self._hashes:
            return None
        choice = keyed(self._key, name.encode("utf-8", "surrogatepass"))
        return self._hashes[int.from_bytes(choice[:8], "little") % len(self._hashes)]

    def _is_remembered(self, digest: bytes) -> bool:
        with self._lock:
            until_s = self._remembered.get(digest)
            if until_s is not None and until_s < self._clock():
                del self._remembered[digest]
                until_s = None
        return until_s is not None

    def _count_refused(self, source: str) -> None:
        counted = self.refused_busy
        if source not in counted and len(counted) >= REFUSED_ORIGINS_MAX:
            source = "others"
        counted[source] += 1
        if self._may_log():
            log.warning(
                "password check queue full, clients refused %s",
                pairs(
                    waiting_max=self._waiting_max,
                    refused=counted.total(),
                    address=source,
                    its=counted[source],
                ),
            )
