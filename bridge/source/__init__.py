"""Sources of a bridge: partitions of the log, and their names."""
