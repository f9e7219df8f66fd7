"""From the cursor of a partition to somewhere else: what a broker has stored, on its way to the lake.

The bridge reads records where they are (ring while they are hot, log when the ring has moved on), gathers
contiguous runs of one partition into drained files, and hands those to a sink.  It owns cursors and nothing
else: the ring and the log are the spool, and no record is ever kept a second time.  It never touches a
socket of the broker, and never holds it up unless told to.

    runner.py       Bridge: the thread or process, retries, pause
    orders.py       what it may be told; state.py: what it tells
    drain.py        Drain: what is next, intent first, checkpoint after the sink has it
    partitions.py   what there is to drain, and what each partition wants
    plan.py         whose turn it is: live and backlog, priorities, rate
    window.py       what is under way, acknowledged in any order
    cursor.py       where a partition stands
    checkpoint.py   all of them, on disk; reconcile.py: and in the sink
    source.py       the records of one partition: ring, log, or a declared loss
    shipping.py     a unit on its way: built and put, or filtered and sent
    unit.py         records into a drained file; records.py: for sinks that take them one by one
    transform.py    topics that go there, their names there, plug-ins; dead_letters.py: what never gets there
    lag.py          how far behind, and how long the buffer lasts
    drained.py      the format of that file, and reading it with nothing but the standard library and msgpack
    parquet_footer.py  its footer in a Parquet file
    sink.py         what a sink is; sinks/ has one file each
    spark/          the same files as tables; never imported from here

This module imports nothing: a program that reads drained files imports bridge.drained without the rest.
"""
