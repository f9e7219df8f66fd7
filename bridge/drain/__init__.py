"""Drain: reads records in order, writes them to a sink, and keeps the checkpoint.

bridge.py is the thread of a bridge, drain.py its work. merger.py merges the small files of past days, and
closed_day.py is one such day.
"""
