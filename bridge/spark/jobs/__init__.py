"""Jobs over drained files.  Each module has main(argv), for `spark-submit`, `python -m` and a command of
brim.

    bronze     files into a Parquet table, each record exactly once
    windows    from the table: count, minimum, mean and maximum by device and minute
    gaps       proof that nothing is missing: in the files, and in the table
"""
