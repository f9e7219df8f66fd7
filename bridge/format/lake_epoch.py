"""Epochs of the lake: 63 bits, of which the lower 32 are the epoch of the ring.

The other bits are the number of a life of the installation (installation.py).
"""

from __future__ import annotations

EPOCH_BITS = 32  # of a ring's epoch, within that of the lake


def ring_epoch(epoch: int) -> int:
    """The epoch in ring and log of an epoch of the lake."""
    return epoch & ((1 << EPOCH_BITS) - 1)
