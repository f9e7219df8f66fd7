"""Formats of the bridge: drained file, file name, cursor, record batch."""
