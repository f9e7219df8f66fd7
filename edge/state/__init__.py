"""What the broker remembers of its clients, kept so that a crash and a restart forget none of it.

    ring `sessions`       the journal: what happened since the last checkpoint (ringbuf/c/mqtt/journal.h)
    file sessions.state   the checkpoint: what there was (edge/state/checkpoint.py); and a copy of it
    file retained.state   retained messages that the rings may have overwritten (edge/state/retained_file.py)

A restart reads the checkpoint, does again what the journal says, routes what was stored just before the end,
and begins with a new checkpoint (edge/state/restoring.py).
"""

from edge.state.keeper import Keeper

__all__ = ["Keeper"]
