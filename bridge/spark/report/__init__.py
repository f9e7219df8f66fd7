"""Report: the page of `brim spark report`, made of names and footers of drained files.

Owns checks with their limits, the ranges of records that are not there, charts and the HTML page. Reads no
record and does not start Spark.

    stream_checks.py   a row for each edge and stream, and for each edge: value, limit, pass or fail
    absent_ranges.py   ranges that are missing, lost or skipped, and the files next to them
    time_buckets.py    amounts in intervals of equal length
    figure_style.py    layout and colours of all charts
    offset_strips.py   chart of the offsets of each partition and epoch
    charts.py          charts of volume, lag and devices
    device_rows.py     devices of a table, by Spark
    wording.py         numbers as short text
    page.py            the HTML file; page.html.j2, page.css and page.js are its parts
"""
