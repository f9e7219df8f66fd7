"""From the cursor of a partition to somewhere else: what a broker has stored, on its way to the lake.

The bridge reads records where they are (ring while they are hot, log when the ring has moved on), gathers
contiguous runs of one partition into drained files, and hands those to a sink.  It owns cursors and nothing
else: the ring and the log are the spool, and no record is ever kept a second time.  It never touches a
socket of the broker, and never holds it up unless told to.

    runner.py       Bridge: the thread or process, retries, pause, state
    drain.py        Drain: one unit at a time, intent first, checkpoint after the sink has it
    source.py       the records of one partition: ring, log, or a declared loss
    unit.py         records into a drained file
    drained.py      the format of that file, and reading it with nothing but the standard library and msgpack
    checkpoint.py   how far a sink has got, on disk
    sink.py         what a sink is; sinks/ has one file each
    spark/          the same files as tables; never imported from here

This module imports nothing, so that an executor that was given only a zip of Python files can import
bridge.drained and bridge.spark.
"""
