"""Sinks, one file each; nothing is imported here.  bridge.sink says what a sink is and picks one by URL."""
