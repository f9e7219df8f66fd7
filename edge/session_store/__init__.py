"""Session store: the broker's state of its clients, which survives a crash and a restart.

    ring `sessions`            the journal: changes since the last snapshot
                               (ringbuf/c/mqtt/durable/journal.h)
    file sessions.state        the snapshot: all state at one time (edge/session_store/snapshot_file.py)
    file sessions.state.copy   a copy of the snapshot, for a damaged sessions.state
    file retained.state        retained messages that the rings may have overwritten
                               (edge/recovery/retained_store.py)

A restart reads the snapshot and the journal (edge/recovery/read_journal.py), applies them, routes the
records stored just before the end, and begins with a new snapshot (edge/recovery/restore_sessions.py).
"""
