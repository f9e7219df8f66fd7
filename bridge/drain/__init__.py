"""Drain: reads records in order, writes them to a sink, and keeps the checkpoint."""
