"""Code that runs as another user of this machine, in a group that files can be given to.  Needs root."""

import os

import pytest

USER, GROUP = 23_456, 23_457  # of no other user


def other_user_or_skip() -> None:
    """Skip the test where processes of other users cannot be started."""
    if os.geteuid() != 0:
        pytest.skip("only root starts processes of other users: run the tests as root")


def as_other_user(code: str, user: int = USER) -> str:
    """Python code that becomes `user` of GROUP before it does what `code` says.

    Modules are imported before that: the checkout may be closed to others.
    """
    modules = "import os, edge.local.producer_ring, edge.local.shm_subscription, ringbuf"
    return f"{modules}\nos.setgroups([]); os.setgid({GROUP}); os.setuid({user})\n{code}"
