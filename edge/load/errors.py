"""Errors of the load generator.

    EdgeError
        LoadError               an invalid option, or a limit of this machine
            ClientsRefused      the broker refuses clients
        BrokerUnreachable
            NothingListens      no process accepts connections there

Failures during a run (losses, refused messages, broken connections) are part of the Result.
"""

from __future__ import annotations

from edge.errors import BrokerUnreachable, EdgeError, Refused


class LoadError(EdgeError):
    """The requested load cannot be measured."""


class ClientsRefused(LoadError, Refused):
    """The broker answers, and refuses clients or their subscriptions."""


class NothingListens(BrokerUnreachable):
    """There is no broker at that address."""
