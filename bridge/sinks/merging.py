"""Merging: the store of a sink in which files can be merged, and the two forms of merged files.

    form      built by                                 verified by
    native    bridge/format/merged_file.py             the same
    Parquet   bridge/sinks/merged_parquet.py           the same

Owns the choice of the form, which follows from the path of a file. Never decides which files are merged
(bridge/drain/merger.py). pyarrow is imported by the first Parquet file.
"""

from __future__ import annotations

from typing import Protocol

from bridge.format.drained_file import FOOTER_MAX_BYTES, FileFooter, parse_footer
from bridge.format.file_builder import DrainedFile
from bridge.format.file_name import FileName, is_parquet
from bridge.format.merged_file import NativeMerge, replaced_names, verified
from bridge.sinks.interface import MergingStore, Sink
from bridge.sinks.parquet import ParquetSink, parquet_footer_in


class FileMerge(Protocol):
    """A merged file that is built."""

    def add(self, name: FileName, data: bytes) -> bool:
        """Add a file; False: it does not fit. Raises DrainedFileError: it is damaged."""

    def finish(self) -> DrainedFile | None:
        """The merged file; None: fewer than two files were added."""


def merging_store(sink: Sink) -> MergingStore | None:
    """The store in which the files of a sink can be merged; None: the sink has none."""
    store = sink.inner if isinstance(sink, ParquetSink) else sink
    return store if isinstance(store, MergingStore) else None


def merge_of(path: str, bytes_max: int) -> FileMerge:
    """A merged file without files yet, for those of the form of `path`."""
    if not is_parquet(path):
        return NativeMerge(bytes_max)
    from bridge.sinks.merged_parquet import ParquetMerge

    return ParquetMerge(bytes_max)


def verified_footer(name: FileName, path: str, data: bytes) -> FileFooter:
    """The footer of a merged file, all of which is verified. Raises DrainedFileError."""
    if not is_parquet(path):
        return verified(name, data, path).footer
    from bridge.sinks.merged_parquet import check_parquet

    return check_parquet(name, data)


def names_replaced_by(store: MergingStore, name: FileName, path: str) -> list[FileName]:
    """Names of the files that a merged file replaces. Raises DrainedFileError: its footer cannot be read."""
    tail = store.read(path, FOOTER_MAX_BYTES)
    return list(replaced_names(name, parquet_footer_in(tail) if is_parquet(path) else parse_footer(tail)))
