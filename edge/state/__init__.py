"""Session store: the broker's state of its clients, which survives a crash and a restart.

    ring `sessions`       the journal: changes since the last checkpoint (ringbuf/c/mqtt/journal.h)
    file sessions.state   the checkpoint: all state at one time (edge/state/checkpoint.py); and a copy of it
    file retained.state   retained messages that the rings may have overwritten (edge/state/retained_file.py)

A restart reads the checkpoint, applies the journal, routes the records stored just before the end, and begins
with a new checkpoint (edge/state/restoring.py).
"""

from edge.state.keeper import Keeper

__all__ = ["Keeper"]
