"""Drained files as tables: the Spark data source "brim" and its jobs.

    source.py         spark.read.format("brim") and readStream
    options.py        what .option() takes
    landing.py        which files there are
    plan.py           which of them a batch reads, in which tasks
    decode.py         files into Arrow batches, in C; decode_numpy.py where there is no compiled code
    columns.py        the columns of a record
    payloads.py       what payloads are, by topic: a small file
    fields.py         payloads into typed columns; unpacked.py in C, formats.py by libraries
    coverage.py       ranges of offsets: what is there twice, what is missing
    session.py        a Spark session on this machine
    zipped.py         all that an executor needs, in one zip for --py-files
    jobs/             bronze, windows, gaps: each with main(argv), for spark-submit and python -m

Never imported by the broker or the rest of the bridge.  On executors it needs pyarrow and numpy; the compiled
core is used where it is, and not missed where it is not.
"""
