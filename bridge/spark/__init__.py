"""Drained files as tables: the Spark data source "brim" and its jobs.

    data_source.py     spark.read.format("brim") and readStream
    options.py         options for .option()
    landing_zone.py    list and content of the drained files
    table_plan.py      files and tasks of a query, by its options
    micro_batch.py     end of a stream's next batch: limits, progress, missing files
    task_planning.py   tasks of equal size, without records that two files hold
    lake.py            one table of Parquet files, read by Spark, and of the others
    conditions.py      conditions of a query, by options or pushed down by Spark
    tables.py          tables of batches, with or without a Delta log; schema_evolution.py: their columns
                       over time
    session.py         a Spark session on this machine; quiet_workers.py: its workers, without tracebacks
    jobs/              bronze, silver, windows, gaps and more: each with main(argv)

Never imported by the broker or the rest of the bridge. Executors need the wheel with the extra `spark`,
installed or as a packed virtual environment (--archives). Parquet files of a bridge need nothing there.
"""
