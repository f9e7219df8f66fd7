"""Iceberg table, committed by PyIceberg without a jar.

Spark writes the files of a batch (table_layout.py). The driver adds them to the table in one transaction that
also sets the table's property `brim.batch` to the number of the batch. The summary of the snapshot has the
same number. So a batch that is run again after its commit is recognised by the table, also when its snapshot
has expired. The first transaction creates the table: a kill leaves a whole table or none.

Of two jobs that write a batch at the same time, one has its commit: after a conflict with another writer the
property is read again. PyIceberg's own retry does not read it, so a batch is committed without that.

The catalogue is the name of a catalogue in PyIceberg's own configuration (its file, or environment variables
PYICEBERG_CATALOG__NAME__*), or a URL: sqlite:///PATH, or http(s):// of a REST catalogue. Default: an SQLite
file in TABLE.state. TABLE.state/iceberg.json keeps both, so that jobs that read a table need no option:

    {"catalog": "sqlite:////srv/bronze.state/catalog.db", "name": "brim.bronze"}

Partition: day of `timestamp` (hidden). Files are Parquet with zstd.

PyIceberg has no compaction and does not delete files. So compact() lets Spark write the large files and
commits the exchange. clean() expires snapshots and then deletes the files that no snapshot has. Batches are
committed meanwhile: with ISOLATION an exchange conflicts only with another change of the same files.
Requires pyiceberg, the extra `iceberg`.
"""

from __future__ import annotations

import json
import os
import re
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs, parquet

from bridge.errors import SourceOptionError, TableUnreachable
from bridge.spark.table_layout import (
    COMPRESSION,
    TableFile,
    key_of,
    may_be_in_flight,
    merge_files,
    small_files,
    time_of,
)
from bridge.spark.table_places import (
    COMMIT_TRIES,
    busy,
    check_characters,
    check_records,
    is_there,
    opened,
    parquet_files,
    state_of,
    taken,
    url_of,
)
from ringbuf.extras import install_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

BATCH = "brim.batch"
KEPT, UNFINISHED = "iceberg.json", "new-iceberg.json"
CATALOG = "brim"  # name in PyIceberg's configuration for settings of a catalogue given by URL
ISOLATION = dict.fromkeys(("write.delete.isolation-level", "write.update.isolation-level"), "snapshot")
RETRIES = "commit.retry.num-retries"  # of an exchange; see commit()
PROPERTIES = {
    **ISOLATION,
    "write.parquet.compression-codec": COMPRESSION,
    "commit.manifest-merge.enabled": "true",
    RETRIES: "20",
    "commit.retry.max-wait-ms": "2000",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
LOCAL, SQLITE = "file://", "sqlite:///"
NOT_IN_PATHS = "%#?"  # programs that read a URL give these characters a meaning
PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")


class IcebergLog:
    """See TableLog in tables.py. `catalog` and `name` are needed once, with the first batch.

    Raises SourceOptionError: pyiceberg is not installed, the table has another catalogue or name, or its path
    has a character of NOT_IN_PATHS.
    """

    def __init__(self, table: str, catalog: str = "", name: str = "") -> None:
        self._place = table.rstrip("/")
        try:
            import pyiceberg  # noqa: F401
        except ImportError as error:
            raise SourceOptionError(
                f"{table}: pyiceberg is not installed", hint=install_extra("iceberg")
            ) from error
        check_characters(url_of(self._place), NOT_IN_PATHS)
        chosen = {"catalog": _from_everywhere(catalog), "name": name}
        known = kept_settings(self._place)
        for key, value in known.items():
            if chosen[key] not in {"", value, _from_everywhere(value)}:
                raise SourceOptionError(
                    f"{table} has the {key} {value}, not {chosen[key]}", hint="leave it out"
                )
        settings = known or {key: value or _default(self._place, key) for key, value in chosen.items()}
        if PASSWORD.search(settings["catalog"]):
            text = "the URL of a catalogue must have no password, because it is written next to the table"
            hint = "set PYICEBERG_CATALOG__LAKE__URI in the environment, and give the name: --catalog lake"
            raise SourceOptionError(text, hint=hint)
        self._settings = settings
        self._catalog: Any = None

    def last_batch(self) -> int | None:
        """See TableLog."""
        table = self._opened()
        return _number_of(table) if table is not None else None

    def commit(self, batch: int, directory: str, records: int) -> None:
        """See TableLog."""
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        for tries_left in reversed(range(COMMIT_TRIES)):
            try:
                self._append(self._opened(), batch, directory, records)
            except (CommitFailedException, TableAlreadyExistsError) as error:
                if not tries_left:
                    raise busy(self._place, error) from error
            else:
                break

    def _append(self, table: Any, batch: int, directory: str, records: int) -> None:
        """Commit for this state of the table. Raises TableBusy, and errors of a conflict."""
        if table is not None:
            if (known := _number_of(table)) is not None and known >= batch:
                raise taken(self._place, batch)
            table.metadata.properties[RETRIES] = "0"  # of this copy: commit() reads the table again
        paths = [entry.path for entry in parquet_files(f"{self._place}/{directory}")]
        check_records(f"{self._place}/{directory}", sum(map(self._rows, paths)), records)
        if not paths:
            return
        arrow, files = self._arrow_schema(paths[0]), [self._url(path) for path in paths]
        transaction = self._created(arrow) if table is None else table.transaction()
        with transaction as changes:
            if table is not None:
                with changes.update_schema() as columns:
                    columns.union_by_name(arrow)
            changes.add_files(files, snapshot_properties={BATCH: str(batch)}, check_duplicate_files=False)
            changes.set_properties({BATCH: str(batch)})

    def _created(self, arrow: pa.Schema) -> Any:
        """A transaction that creates the table."""
        from pyiceberg.transforms import DayTransform, IdentityTransform

        name = self._settings["name"]
        self._keep()
        self._catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        transaction = self._catalog.create_table_transaction(
            name, arrow, self._location(), properties=PROPERTIES
        )
        time_column = time_of(arrow.names)
        with transaction.update_spec() as partition:
            partition.add_field(time_column, DayTransform(), f"{time_column}_day")
        with transaction.update_sort_order() as order:
            order.asc(key_of(arrow.names), IdentityTransform())
        return transaction

    def schema(self) -> StructType | None:
        """See TableLog."""
        from pyspark.sql.pandas.types import from_arrow_schema

        table = self._opened()
        if table is None:
            return None
        return from_arrow_schema(table.schema().as_arrow(), prefer_timestamp_ntz=True)

    def paths(self) -> list[str]:
        """See TableLog. Raises SourceOptionError: another engine has deleted single rows."""
        table = self._opened()
        return [self._of_spark(file.file_path) for file in self._files(table)] if table is not None else []

    def _files(self, table: Any) -> list[Any]:
        tasks = list(table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            text = f"{self._place} has delete files, which another engine wrote"
            raise SourceOptionError(text, hint="rewrite its data files with that engine first")
        return [task.file for task in tasks]

    def compact(self, spark: SparkSession, file_bytes: int) -> tuple[int, int]:
        """See TableLog."""
        table = self._to_exchange()
        old = small_files(self._table_files(table), file_bytes) if table is not None else []
        schema = self.schema()
        if table is None or schema is None or not old:
            return 0, 0
        directory = f"{self._place}/compact-{uuid.uuid4().hex}"
        merge_files(spark, schema, old, directory, file_bytes, by_day=True)
        new = list(self._data_files(table, directory))
        written, read = (
            sum(file.record_count for file in files) for files in (new, [it.entry for it in old])
        )
        check_records(directory, written, read)
        with (
            self._conflicts(),
            table.transaction() as changes,
            changes.update_snapshot().overwrite() as exchange,
        ):
            for file in old:
                exchange.delete_data_file(file.entry)
            for file in new:
                exchange.append_data_file(file)
        return len(old), len(new)

    def _table_files(self, table: Any) -> Iterator[TableFile]:
        for file in self._files(table):
            path, day = self._of_spark(file.file_path), tuple(file.partition)
            yield TableFile(path, file.file_size_in_bytes, day, file)

    def _data_files(self, table: Any, directory: str) -> Iterator[Any]:
        from pyiceberg.io.pyarrow import parquet_files_to_data_files

        urls = (self._url(entry.path) for entry in parquet_files(directory))
        yield from parquet_files_to_data_files(table.io, table.metadata, urls)

    def delete_before(self, day: date) -> None:
        """See TableLog."""
        from pyiceberg.expressions import LessThan

        if (table := self._to_exchange()) is not None:
            name = time_of(table.schema().column_names)
            with self._conflicts():
                table.delete(LessThan(name, f"{day.isoformat()}T00:00:00+00:00"))

    def _to_exchange(self) -> Any:
        """As _opened(). A table of an earlier version gets ISOLATION."""
        table = self._opened()
        if table is not None and not ISOLATION.items() <= table.properties.items():
            with self._conflicts(), table.transaction() as changes:
                changes.set_properties(ISOLATION)
        return table

    @contextmanager
    def _conflicts(self) -> Iterator[None]:
        """Raise TableBusy for the errors of a conflict."""
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        try:
            yield
        except (CommitFailedException, ValidationException) as error:
            raise busy(self._place, error) from error

    def clean(self, hours: int) -> int:
        """See TableLog."""
        table = self._opened()
        if table is None:
            return 0
        before = datetime.now(UTC) - timedelta(hours=hours)
        table.maintenance.expire_snapshots().older_than(before).commit()
        table = table.refresh()
        last = _number_of(table)
        filesystem, root = opened(self._place)
        needed = {_path(url) for url in _referenced(table)}
        entries = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
        old = [
            entry.path
            for entry in entries
            if entry.type == fs.FileType.File
            and entry.path not in needed
            and not may_be_in_flight(entry.path.removeprefix(f"{root}/"), last)
            and entry.mtime is not None
            and entry.mtime < before
        ]
        for path in old:
            filesystem.delete_file(path)
        return len(old)

    def _opened(self) -> Any:
        """The table as it is now; None: not there yet.

        Raises TableUnreachable; SourceOptionError: the catalogue has the table at another place.
        """
        from pyiceberg.exceptions import NoSuchTableError

        try:
            if self._catalog is None:
                self._catalog = _catalog_of(self._settings["catalog"])
                weakref.finalize(self, self._catalog.close)  # its connections
            table = self._catalog.load_table(self._settings["name"])
        except NoSuchTableError:
            return None
        except Exception as error:  # of the catalogue's own library
            text = f"{self._place}: the catalogue {self._settings['catalog']} cannot be used: {error}"
            raise TableUnreachable(text, hint="check --catalog, and try again when it answers") from error
        self._check_place(table.location())
        return table

    def _location(self) -> str:
        """URL of the table's directory."""
        url = url_of(self._place)
        return url if "://" in url else f"{LOCAL}{url}"

    def _check_place(self, known: str) -> None:
        """Refuse a link to the table, a copy, and another table of that name: their files have other URLs.

        A batch would go to the other table, and clean() would delete all files as not needed.
        """
        if url_of(known).rstrip("/") != self._location():
            raise SourceOptionError(
                f"{self._place} is in its catalogue as {known.removeprefix(LOCAL)}",
                hint="give that path; for a new table, choose a directory and a --name that are not in use",
            )

    def _keep(self) -> None:
        """Write the catalogue and the name next to the table."""
        filesystem, path = opened(state_of(self._place))
        filesystem.create_dir(path)
        with filesystem.open_output_stream(f"{path}/{UNFINISHED}") as file:
            file.write(json.dumps(self._settings).encode())
        filesystem.move(f"{path}/{UNFINISHED}", f"{path}/{KEPT}")  # a kill leaves no part of it

    def _arrow_schema(self, path: str) -> pa.Schema:
        """The columns of a file that Spark wrote, by its path in the form of pyarrow."""
        filesystem, _ = opened(self._place)
        with filesystem.open_input_file(path) as file:
            return parquet.read_schema(file).remove_metadata()

    def _rows(self, path: str) -> int:
        filesystem, _ = opened(self._place)
        with filesystem.open_input_file(path) as file:
            return int(parquet.read_metadata(file).num_rows)

    def _url(self, path: str) -> str:
        """URL of a file of pyarrow's, for the table."""
        scheme, sign, _ = url_of(self._place).rpartition("://")
        return f"{scheme}{sign}{path}" if sign else f"{LOCAL}{path}"

    def _of_spark(self, url: str) -> str:
        return url.replace("s3://", "s3a://", 1) if self._place.startswith("s3a://") else url


def kept_settings(table: str) -> dict[str, str]:
    """Catalogue and name of a table; empty: not an Iceberg table. Raises TableUnreachable."""
    state = state_of(table)
    if not is_there(state, KEPT):
        return {}
    filesystem, path = opened(state)
    with filesystem.open_input_stream(f"{path}/{KEPT}") as file:
        settings: dict[str, str] = json.loads(file.read())
    return settings


def _number_of(table: Any) -> int | None:
    """Number of the last batch that was committed."""
    number = table.properties.get(BATCH)
    return None if number is None else int(number)


def _catalog_of(catalog: str) -> Any:
    """The catalogue of a name or URL. Raises errors of PyIceberg and of the catalogue's library."""
    from pyiceberg.catalog import load_catalog

    if "://" in catalog:
        return load_catalog(CATALOG, uri=catalog)
    return load_catalog(catalog)


def _from_everywhere(catalog: str) -> str:
    """The URL of a catalogue, with the absolute path of an SQLite file: jobs run in several directories."""
    path = catalog.removeprefix(SQLITE)
    return f"{SQLITE}{os.path.abspath(path)}" if catalog.startswith(SQLITE) else catalog


def _default(table: str, key: str) -> str:
    if key == "catalog":
        state = url_of(state_of(table))
        if "://" in state:
            text = f"{table} is not on this machine, so its catalogue must be given"
            raise SourceOptionError(text, hint="--catalog URL, or the name of a catalogue of PyIceberg")
        os.makedirs(state, exist_ok=True)
        return f"{SQLITE}{state}/catalog.db"
    return "brim." + re.sub(r"\W", "_", table.rpartition("/")[2])


def _referenced(table: Any) -> Iterator[str]:
    """URLs of all files that the table needs: metadata, and the files of each snapshot."""
    yield table.metadata_location
    yield from (entry.metadata_file for entry in table.metadata.metadata_log)
    for files in (table.metadata.statistics, table.metadata.partition_statistics):
        yield from (file.statistics_path for file in files)
    for snapshot in table.snapshots():
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            yield manifest.manifest_path
            yield from (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))


def _path(url: str) -> str:
    """Path of a URL in the form of pyarrow. A local one has no encoded character (NOT_IN_PATHS)."""
    if url.startswith(LOCAL):
        return url.removeprefix(LOCAL)
    return fs.FileSystem.from_uri(url)[1] if "://" in url else url
