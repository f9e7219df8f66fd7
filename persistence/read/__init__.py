"""Readers of the log: by offset, by topic, merged, or as bytes for a socket."""
