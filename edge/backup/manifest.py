"""Manifest of a backup: JSON in DIR/manifest.json, written last, so that a backup without it is incomplete.

    {"format": "brim-backup", "version": 1, "brim": version of the program, "created_ns": wall clock,
     "edge_id": ..., "user": owner of the state directory, "is_live": true if the broker ran,
     "missing": [text, ...], "files": [{"path": relative to DIR, "bytes": ..., "sha256": ...}, ...]}

Rule for change: keys may be added; any other change raises the version. A later version is refused.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from edge.errors import EdgeError
from persistence.durable_file import read_file, replace_file
from persistence.files import OsFiles

MANIFEST_NAME = "manifest.json"
PARTIAL_SUFFIX = ".partial"
FORMAT, VERSION = "brim-backup", 1


class BackupFile(Struct, frozen=True):
    """One file. `path`: relative to the backup, with `/`."""

    path: str
    bytes: int
    sha256: str


class Manifest(Struct, frozen=True):
    """Content of the file. `missing`: parts of the broker's state that the backup does not have."""

    brim: str
    created_ns: int
    edge_id: str
    user: str
    is_live: bool
    missing: tuple[str, ...]
    files: tuple[BackupFile, ...]
    format: str = FORMAT
    version: int = VERSION


def partial_of(directory: Path) -> Path:
    """The directory in which the backup `directory` is made, before it is complete."""
    return directory.with_name(f"{directory.name}{PARTIAL_SUFFIX}")


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, synced. Raises OSError."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    replace_file(OsFiles(), str(directory / MANIFEST_NAME), [text, b"\n"])


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of the backup in `directory`. Raises EdgeError if there is no complete backup."""
    path = directory / MANIFEST_NAME
    try:
        manifest = msgspec.json.decode(read_file(OsFiles(), str(path)), type=Manifest)
    except OSError as error:
        hint = "name a directory that `brim backup` has made"
        partial = directory if directory.name.endswith(PARTIAL_SUFFIX) else partial_of(directory)
        if partial.is_dir():
            hint = f"the backup was interrupted; rm -r {partial}, and make the backup again"
        raise EdgeError(
            f"{directory} is not a complete backup: {path}: {error.strerror}", hint=hint
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EdgeError(f"{path} is damaged: {error}", hint="use another backup") from error
    if (manifest.format, manifest.version) != (FORMAT, VERSION):
        found = f"{manifest.format} version {manifest.version}"
        hint = f"use Brim {manifest.brim} or later"
        raise EdgeError(f"{path} is {found} (allowed: {FORMAT} version {VERSION})", hint=hint)
    for file in manifest.files:
        if file.path.startswith("/") or ".." in file.path.split("/"):
            raise EdgeError(
                f"{path} is damaged: path {file.path!r} leaves the backup", hint="use another backup"
            )
    return manifest
