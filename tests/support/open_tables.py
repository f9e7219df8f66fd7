"""Delta and Iceberg tables as other programs read them: by deltalake and PyIceberg, without Brim."""

import json
import weakref
from pathlib import Path
from typing import Any


def form_of(table: Path) -> str:
    """Its format, by the files of the format."""
    if (table / "_delta_log").is_dir():
        return "delta"
    return "iceberg" if (table / "metadata").is_dir() else "parquet"


def delta_of(table: Path) -> Any:
    """The table of deltalake."""
    import deltalake

    return deltalake.DeltaTable(table)


def iceberg_of(table: Path) -> Any:
    """The table of PyIceberg."""
    from pyiceberg.catalog import load_catalog

    kept = json.loads(Path(f"{table}.state", "iceberg.json").read_text())
    catalog = load_catalog("brim", uri=kept["catalog"])
    return with_catalog(catalog.load_table(kept["name"]), catalog)


def with_catalog(table: Any, catalog: Any) -> Any:
    """The table. The connections of its catalogue are closed at its end."""
    weakref.finalize(table, catalog.close)
    return table


def rows_of(table: Path, form: str, columns: list[str]) -> Any:
    """Its rows as a table of pyarrow."""
    if form == "delta":
        return delta_of(table).to_pyarrow_table(columns=columns)
    return iceberg_of(table).scan(selected_fields=tuple(columns)).to_arrow()
