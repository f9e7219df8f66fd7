"""All that a Spark executor needs to read drained files, in one zip of Python files.

    python -m bridge.spark.zipped brim.zip
    spark-submit --py-files brim.zip .../bridge/spark/jobs/bronze.py s3://bucket/lake --to s3a://bucket/bronze

For clusters on which nothing can be installed: pyarrow and numpy are what such clusters have.  msgpack goes
along, in its pure Python form.  Nothing compiled is in it, for modules cannot be loaded from a zip; so
decode_numpy.py does the work.  Where the wheel can be installed on the executors, do that instead: it
decodes five times as fast.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgpack

from bridge import drained

__all__ = ["main", "write"]

PORTABLE = ("__init__.py", "drained.py", "errors.py", "parquet_footer.py")  # and all of bridge.spark
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files give the same zip


def write(target: Path) -> None:
    """The zip at `target`, replaced in one step."""
    partial = target.with_name(f".{target.name}.partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(_files()):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), path.read_bytes())
    partial.replace(target)


def _files() -> Iterator[tuple[str, Path]]:
    ours = Path(drained.__file__).parent
    for name in PORTABLE:
        yield f"bridge/{name}", ours / name
    theirs = Path(msgpack.__file__).parent
    for root, package in ((ours / "spark", "bridge/spark"), (theirs, "msgpack")):
        for path in root.rglob("*.py"):
            yield f"{package}/{path.relative_to(root).as_posix()}", path


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0."""
    parser = argparse.ArgumentParser(prog="zipped", description="A zip for spark-submit --py-files.")
    parser.add_argument("target", type=Path)
    target: Path = parser.parse_args(argv).target
    write(target)
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
