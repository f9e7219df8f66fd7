"""The names of drained files: any name is read back, other paths are not taken for a name."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import BadName
from bridge.format.file_name import FileName, check_edge
from tests.support.drained_files import EPOCH


@given(
    stream=st.from_regex(r"[a-z0-9][a-z0-9_-]{0,23}(@[a-z0-9][a-z0-9_-]{0,23})?", fullmatch=True),
    edge=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
    first=st.integers(0, 2**64 - 2),
    count=st.integers(1, 1000),
    partition=st.integers(0, 63),
)
def test_any_name_is_read_back(stream: str, edge: str, first: int, count: int, partition: int) -> None:
    last = min(first + count - 1, 2**64 - 1)
    name = FileName(edge, 12, stream, partition, EPOCH, first, last, "2023-11-14")
    for it in (name, dataclasses.replace(name, compressed=True)):
        assert FileName.parse(it.path) == it


@pytest.mark.parametrize(
    "path",
    [
        "edge=e/dt=2023-11-14/.partial-0000000000000001-default-p0000-e1700000000-00000000000000000000-"
        "00000000000000000009.brim",
        "lake/edge=e/.partial-0000000000000001-default-p0000-e1700000000-00000000000000000000-"
        "00000000000000000009.brim",
        "edge=e/dt=2023-11-14/0000000000000001-default-p0000-e1700000000-00000000000000000009-"
        "00000000000000000008.brim",
        "edge=e/dt=2023-11-14/part-0.parquet",
        "0000000000000001-default-p0000-e1700000000-00000000000000000000-00000000000000000009.brim",
    ],
)
def test_other_files_have_no_name(path: str) -> None:
    assert FileName.parse(path) is None


@pytest.mark.parametrize("edge", ["", "a/b", "-x", "ä", "x" * 65, "a b", "a\n"])
def test_an_edge_id_that_names_cannot_hold_is_refused(edge: str) -> None:
    with pytest.raises(BadName, match=re.escape(repr(edge))):
        check_edge(edge)
