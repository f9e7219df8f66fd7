"""Sinks, one file each; nothing is imported here. interface.py has the interface, registry.py opens a URL.

merging.py and merged_parquet.py make one file of several in the store of a sink.
"""
