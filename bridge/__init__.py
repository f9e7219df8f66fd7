"""Bridge: drains the records that a broker has stored to a directory, an object store or a queue.

The bridge reads records in place: from the ring while they are there, otherwise from the log. It gathers
contiguous records of one partition into drained files and gives the files to a sink. It owns cursors and
nothing more: ring and log are the buffer, so no record is stored a second time. It never uses a socket of the
broker. It never delays the broker, unless a setting requires that.

    source/   partitions that exist, and their records: from the ring, from the log, or as a declared loss
    drain/    the order of sending, write intents, files in flight, checkpoint, commands of an operator
    sinks/    the sink interface, and one file for each sink
    format/   the drained file, its footer in a Parquet file, batches of records, identity of the installation
    arrow/    drained files as Arrow tables and Parquet files
    spark/    drained files as tables; never imported from the other rooms
    backoff.py, rangeset.py, errors.py: the time before the next try; ranges of offsets; the error tree

This module imports nothing: a program that reads drained files imports bridge.format.drained_file without the
rest.
"""
