"""What keeps a load from being made, as classes.

    EdgeError
        LoadError               an option that cannot be, a limit of this machine
            ClientsRefused      the broker refuses clients
        BrokerUnreachable
            NothingListens      nobody accepts connections there

What goes wrong while it runs (losses, refused messages, connections that break) is part of the Result.
"""

from __future__ import annotations

from edge.errors import BrokerUnreachable, EdgeError, Refused

__all__ = ["ClientsRefused", "LoadError", "NothingListens"]


class LoadError(EdgeError):
    """What was asked for cannot be measured."""


class ClientsRefused(LoadError, Refused):
    """The broker answers, and refuses clients or their subscriptions."""


class NothingListens(BrokerUnreachable):
    """No broker is there."""
