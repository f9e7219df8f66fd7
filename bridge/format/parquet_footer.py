"""Footer of a drained file as metadata of a Parquet file: one text entry.

    key    "brim"
    value  JSON in UTF-8, one object: {"version": 2, then the keys of the footer in their order}

bridge/format/drained_file.py defines the keys, their values and which keys may be absent. Metadata of Parquet
must be text: Polars and DataFusion refuse a file with bytes in it.

Version 1 is the footer as msgpack, without a version. It is still read, and no longer written.

Rule for change: footers may gain keys, which readers ignore. Any other change raises VERSION and adds golden
bytes under tests/golden/bridge. A reader reads all earlier versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from bridge.errors import DrainedFileError
from bridge.format.drained_file import FileFooter

KEY = b"brim"
VERSION = 2


def metadata_of(footer: FileFooter) -> dict[bytes, bytes]:
    """The metadata of a Parquet file with the records of this footer."""
    text = json.dumps({"version": VERSION, **footer.values()}, ensure_ascii=False, separators=(",", ":"))
    return {KEY: text.encode()}


def footer_of(metadata: Mapping[bytes, bytes] | None) -> FileFooter:
    """The footer in the metadata of a Parquet file, of any version.  Raises DrainedFileError."""
    value = (metadata or {}).get(KEY)
    if value is None:
        raise DrainedFileError(f"has no {KEY.decode()!r} in its metadata: no bridge has written it")
    if not value.startswith(b"{"):  # A map in msgpack begins with a byte above 0x7f.
        return FileFooter.unpack(value)
    try:
        values = msgspec.json.decode(value)
    except (ValueError, RecursionError) as error:
        raise DrainedFileError(f"has invalid metadata ({len(value)} bytes): {error}") from error
    version = values.pop("version", None)
    if version != VERSION:
        raise DrainedFileError(
            f"metadata version {version!r}, this build reads 1 to {VERSION}", hint="install a newer Brim"
        )
    return FileFooter.of(values)
