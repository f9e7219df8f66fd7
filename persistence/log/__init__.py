"""Log: the writer of segments, group commit, retention and recovery."""
