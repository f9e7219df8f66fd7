"""Session store: the broker's state of its clients, which survives a crash and a restart.

    ring `sessions`            the journal: changes since the last checkpoint
                               (ringbuf/c/mqtt/durable/journal.h)
    file sessions.state        the checkpoint: all state at one time (edge/session_store/checkpoint_file.py)
    file sessions.state.copy   a copy of the checkpoint, for a damaged sessions.state
    file retained.state        retained messages that the rings may have overwritten
                               (edge/recovery/retained_store.py)

A restart reads the checkpoint and the journal (edge/recovery/read_journal.py), applies them, routes the
records stored just before the end, and begins with a new checkpoint (edge/recovery/restore_sessions.py).
"""

from edge.session_store.journal_writer import SessionJournal

__all__ = ["SessionJournal"]
