"""Sinks, one file each; nothing is imported here. bridge.sink defines the interface and chooses a sink
by URL.
"""
