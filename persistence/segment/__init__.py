"""Segments: the format on disk, and writing, scanning and repairing one segment."""
