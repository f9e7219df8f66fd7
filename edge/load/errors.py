"""What keeps a load from being made, as classes.

    EdgeError
        LoadError               an option that cannot be, a broker that refuses, a limit of this machine
        BrokerUnreachable
            NothingListens      nobody accepts connections there

What goes wrong while it runs (losses, refused messages, connections that break) is part of the Result.
"""

from __future__ import annotations

from edge.errors import BrokerUnreachable, EdgeError

__all__ = ["LoadError", "NothingListens"]


class LoadError(EdgeError):
    """What was asked for cannot be measured."""


class NothingListens(BrokerUnreachable):
    """No broker is there."""
