"""Drain: reads records in order, writes them to a sink, and keeps the checkpoint.

    bridge.py           the thread of a bridge; retries.py and restarts.py: its pauses after failures
    drain.py            the steps of a drain; next_files.py and scheduler.py: the next files, and their order
    in_flight.py        files in flight; sender.py: their delivery to a sink
    checkpoint.py       the saved progress; reconcile.py: its comparison with the sink
    losses.py           records that no file will hold; dead_letters.py: records that the sink refuses
    control_socket.py   requests of an operator; commands.py: their effect
    merger.py           merges the small files of past days; closed_day.py: one such day

One thread of the bridge does all of this. Files are built, put and merged on others.
"""
