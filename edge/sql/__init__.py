"""SQL on the records of a broker of this machine: rings, log and archive as one relation.

    records.py         the relation, narrowed by topics, times, streams and rings
    plan.py            the parts of ring, log and archive that a query reads; each record is in one of them
    scan.py            records of rings and logs as Arrow batches, read and decoded by several threads
    ring_records.py    records of a ring that is being written
    pushdown.py        the part of a query's condition that excludes records before they are read
    view.py            the columns of the relation, as SQL
    topic_filters.py   MQTT topic filters, as SQL
    spill_directory.py files of a query that needs more memory than it may have
    losses.py          records that a query could not read
    result.py          rows of a query as Arrow, pandas, polars or tuples
    windows.py         the same query for each window of time

DuckDB runs the queries and reads intact archives itself. Only reads: takes no lock, and changes no ring, log
or archive. Invariant: a record that cannot be read is declared in the losses of the query.
"""
