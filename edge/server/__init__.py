"""Composition root: builds the broker from a configuration, starts and stops it."""
