"""Names of the machine's users, for errors and listings."""

from __future__ import annotations

import os
import pwd
from functools import lru_cache


def user_name(number: int | None = None) -> str:
    """Name of a user, by default the one of this process; the number if the machine has no name for it."""
    return _name_of(os.geteuid() if number is None else number)


@lru_cache(maxsize=64)  # a lookup may use the network, and a local user may cause errors at any rate
def _name_of(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
