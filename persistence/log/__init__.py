"""Log: the writer of segments, group commit and recovery."""
