"""Requester: the connection that a request came from."""

from __future__ import annotations

from typing import Self


class Requester(bytes):
    """Routing id of a connection, with the owner that it counts for: a user of this machine, an address, or a
    CURVE key; "": no share holds for it.
    """

    owner: str

    def __new__(cls, routing_id: bytes, owner: str) -> Self:
        """Create a requester."""
        requester = super().__new__(cls, routing_id)
        requester.owner = owner
        return requester
