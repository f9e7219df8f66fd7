"""Offsets in the transaction of the results: each reading is in an SQLite database once, after any crash.

Start the broker with `brim run`, start this program, and publish:

    python examples/own_offsets.py readings.db
    brim pub plant/1/temp -m 21.5

Kill this program or the broker with -9, and start it again: the database has each reading once.
"""

import argparse
import sqlite3
from contextlib import closing
from pathlib import Path

import brim

TABLES = """
CREATE TABLE IF NOT EXISTS readings (topic TEXT, value TEXT);
CREATE TABLE IF NOT EXISTS places (ring TEXT PRIMARY KEY, epoch INTEGER, offset INTEGER);
"""


def main() -> None:
    """Run until stopped, or until --until readings are stored."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("database", type=Path)
    parser.add_argument("--until", type=int, help="end when so many readings are stored")
    parser.add_argument("--runtime-dir", type=Path, help="of the broker")
    arguments = parser.parse_args()
    with closing(sqlite3.connect(arguments.database)) as database:
        database.executescript(TABLES)
        rows = database.execute("SELECT ring, epoch, offset FROM places")
        places = {ring: (epoch, offset) for ring, epoch, offset in rows}
        (stored,) = database.execute("SELECT count(*) FROM readings").fetchone()
        with brim.reader("plant/+/temp", start=places, runtime_dir=arguments.runtime_dir) as batches:
            for batch in batches:
                with database:  # one transaction: the readings and the place behind them, or neither
                    readings = [(record.key.decode(), bytes(record).decode()) for record in batch]
                    database.executemany("INSERT INTO readings VALUES (?, ?)", readings)
                    place = (batch.ring, *batch.next)
                    database.execute("INSERT OR REPLACE INTO places VALUES (?, ?, ?)", place)
                stored += len(batch)
                print(f"{stored} readings", flush=True)
                if arguments.until is not None and stored >= arguments.until:
                    return


if __name__ == "__main__":
    main()
