"""Drained files as Arrow tables: schema, decoder and Parquet files."""
