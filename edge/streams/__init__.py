"""Streams: which topics go into which rings, the ring files, and their epochs."""
