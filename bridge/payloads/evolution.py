"""Changes of a payload schema that readers of files from before and after it can join.

new column       allowed; null in earlier files
missing column   allowed; absent from later files. Its type is remembered
wider type       allowed: int to long, float or double; long to float or double; float to double
other type       refused: no reader joins such files
other case       refused: SQL takes temp and Temp for one column, of which a file may have only one
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.errors import SourceOptionError
from bridge.payloads.kinds import WIDER


def evolved(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """All columns so far, by name, with their last types.

    Raises SourceOptionError if the type of a column may not change so, or if two names differ only in case.
    """
    spelled = {column.lower(): column for column in before}
    for column, kind in now.items():
        if (known := spelled.get(column.lower(), column)) != column:
            raise SourceOptionError(
                f"column {column} of the payload schema is {known} in files that exist, and SQL ignores case",
                hint=f"call it {known} again, or give it another name",
            )
        earlier = before.get(column, kind)
        if kind != earlier and kind not in WIDER.get(earlier, ()):
            raise SourceOptionError(
                f"column {column} of the payload schema is {kind}, and {earlier} in files that exist",
                hint=f"give the {kind} another name, or make it {earlier} again",
            )
    return {**before, **now}
