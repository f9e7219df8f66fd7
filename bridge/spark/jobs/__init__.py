"""Jobs over drained files. Each module has main(argv), for `spark-submit`, `python -m` and a command of brim.

bronze     files into a Parquet table, each record exactly once
kafka      the same table from a Kafka topic
silver     as bronze, with payloads decoded, by topic; payloads that do not decode go into quarantine
latest     from a table: the last record of each device
replay     a range of the files into a table, again or for the first time
compact    many small batches of a table into large files
windows    from the table: count, minimum, mean and maximum by device and minute
live       the same from the files as they arrive: closed minutes, and late records
report     one page of HTML: gaps, volume, lag, late data, devices
gaps       proof that nothing is missing: in the files, and in the table
"""
