"""Bridge: drains the records that a broker has stored to a directory, an object store or a queue.

The bridge reads records in place: from the ring while they are there, otherwise from the log. It gathers
contiguous records of one partition into drained files and gives the files to a sink. It owns cursors and
nothing more: ring and log are the buffer, so no record is stored a second time. It never uses a socket of the
broker. It never delays the broker, unless a setting requires that.

    runner.py       Bridge: its thread or process, retries, pause; backoff.py: the time before the next try
    orders.py       commands of an operator; state.py: the state that a bridge reports
    drain.py        Drain: chooses the next file, saves its write intent, sends it, saves the checkpoint
    partitions.py   partitions that exist, and the next demand of each
    plan.py         order of sending: live records and backlog, priorities, rate
    window.py       files in flight, acknowledged in any order
    cursor.py       progress of one partition
    checkpoint.py   progress of all partitions, on disk; reconcile.py: compared with the sink
    source.py       the records of one partition: from the ring, from the log, or as a declared loss
    shipping.py     delivery: a file is built and put, or records are filtered and sent
    unit.py         records into a drained file; records.py: records for sinks that take them one by one
    transform.py    choice and mapping of topics, plug-ins; dead_letters.py: records that cannot be sent
    rangeset.py     ranges of offsets: union, difference, overlap
    lag.py          distance to the newest record, and the time until the buffer is full
    drained.py      the format of a drained file; reading needs only the standard library and msgpack
    parquet_footer.py  the footer of a drained file in a Parquet file
    sink.py         the sink interface; sinks/ has one file per sink
    spark/          drained files as tables; never imported from here

This module imports nothing: a program that reads drained files imports bridge.drained without the rest.
"""
