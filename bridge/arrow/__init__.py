"""Drained files as Arrow tables: schema, decoder, and reader of Parquet files."""
