"""Drained files as tables: the Spark data source "brim" and its jobs.

    source.py         spark.read.format("brim") and readStream
    options.py        options for .option()
    landing.py        list and content of the drained files
    plan.py           files and tasks of a batch
    where.py          conditions, by options or pushed down by Spark
    decode.py         files into Arrow batches, in C
    columns.py        the columns of a record
    payloads.py       payload schema: formats by topic, in a small file
    fields.py         payloads into typed columns; unpacked.py in C, formats.py by libraries;
                      drift.py: values that do not fit, as text
    tables.py         tables of batches, with or without a Delta log; evolution.py: their columns over time
    page.py           parts of a page of figures
    session.py        a Spark session on this machine; daemon.py: its workers, without tracebacks
    jobs/             bronze, silver, windows, gaps and more: each with main(argv)

Never imported by the broker or the rest of the bridge. Executors need the wheel with the extra `spark`,
installed or as a packed virtual environment (--archives). Parquet files of a bridge need nothing there.
"""
