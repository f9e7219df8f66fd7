"""Brim for Spark: drained files as DataFrames, from notebooks and programs. Needs the extra `spark`.

    session()         a local SparkSession with the data source "brim"
    BrimDataSource    the data source, to register in another SparkSession

    spark = brim.spark.session("notebook")
    spark.read.format("brim").load("sample-lake").groupBy("topic").count().show()

The name for format() is that of the data source:

>>> import brim.spark
>>> brim.spark.BrimDataSource.name()
'brim'

Importing this module loads nothing: the first use of a name loads the modules that it needs.
"""

from brim._lazy import lazy

TYPE_CHECKING = False  # as of typing, which takes longer to import than this package
if TYPE_CHECKING:
    from typing import Any

    from bridge.spark.data_source import BrimDataSource
    from bridge.spark.session import session

__all__ = ["BrimDataSource", "session"]

_HOMES = {
    "bridge.spark.data_source": ("BrimDataSource",),
    "bridge.spark.session": ("session",),
}

if not TYPE_CHECKING:
    _attribute = lazy(__name__, _HOMES)

    def __getattr__(name: str) -> "Any":
        return globals().setdefault(name, _attribute(name))

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
