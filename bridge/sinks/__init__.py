"""Sinks, one file each; nothing is imported here. interface.py has the interface, registry.py opens a URL."""
