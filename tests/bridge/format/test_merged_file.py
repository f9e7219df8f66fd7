"""The merged file: golden bytes, the footers of what it replaces, and what does not fit together."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import DrainedFileError
from bridge.format.drained_file import FileFooter
from bridge.format.file_builder import DrainedFile, compressed
from bridge.format.file_name import FileName, as_drained, is_parquet, is_staged, published, staged
from bridge.format.file_parser import parse, verify
from bridge.format.merged_file import FILES_MAX, NativeMerge, merged_footer, part_of, replaced_names
from tests.support.drained_files import EPOCH, GOLDEN, drained_file_of

LARGE = 1 << 30


def content(file: DrainedFile) -> bytes:
    return b"".join(file.parts)


def name_of(file: DrainedFile) -> FileName:
    name = FileName.parse(file.name)
    assert name is not None
    return name


def merge(*files: DrainedFile, bytes_max: int = LARGE) -> DrainedFile | None:
    """Those of the files that fit, merged."""
    made = NativeMerge(bytes_max)
    for file in files:
        if not made.add(name_of(file), content(file)):
            break
    return made.finish()


def golden_merge() -> DrainedFile:
    first = drained_file_of(
        100, 104, drain_seq=7, partition=3, lost=((95, 99),), skipped=((90, 94),), previous=(EPOCH - 1, 55)
    )
    made = merge(
        first,
        drained_file_of(105, 109, drain_seq=9, partition=3),
        drained_file_of(110, 114, drain_seq=8, partition=3),
    )
    assert made is not None
    return made


def test_a_merged_file_is_written_as_the_golden_bytes_and_read_from_them() -> None:
    data = (GOLDEN / "merged-v1.brim").read_bytes()
    assert content(golden_merge()) == data
    assert golden_merge().name == (GOLDEN / "merged-v1.name").read_text().strip()
    file = parse(data)
    verify(file)
    assert file.name == name_of(golden_merge())
    assert [name.drain_seq for name in replaced_names(file.name, file.footer)] == [7, 9, 8]


@given(sizes=st.lists(st.integers(1, 9), min_size=2, max_size=6), seqs=st.permutations(range(1, 7)))
def test_the_parts_have_the_footers_of_the_files_that_were_merged(sizes: list[int], seqs: list[int]) -> None:
    files, first = [], 50
    for number, size in enumerate(sizes):
        declared: Any = {"lost": ((40, 49),), "earlier_skipped": ((EPOCH - 1, 3, 4),)} if number == 0 else {}
        files.append(drained_file_of(first, first + size - 1, drain_seq=seqs[number], **declared))
        first += size
    made = merge(*files)
    assert made is not None
    footer = parse(content(made)).footer
    names = list(replaced_names(name_of(made), footer))
    assert names == [name_of(file) for file in files]
    assert [part_of(footer, name) for name in names] == [file.footer for file in files]
    assert merged_footer([file.footer for file in files]).merged == footer.merged
    assert FileFooter.unpack(footer.pack()) == footer


def test_compressed_files_become_a_compressed_file() -> None:
    files = []
    for number in range(3):
        plain = drained_file_of(10 * number, 10 * number + 9, drain_seq=number + 1)
        files.append(dataclasses.replace(compressed(plain), name=plain.name + ".zst"))
    made = merge(*files)
    assert made is not None
    assert made.name.endswith(".merged.brim.zst")
    file = parse(content(made))
    verify(file)
    assert file.footer.count == 30


@pytest.mark.parametrize(
    "other",
    [
        drained_file_of(11, 19, drain_seq=2),
        drained_file_of(10, 19, drain_seq=2, epoch=EPOCH + 1),
        drained_file_of(10, 19, drain_seq=2, stream="other"),
        drained_file_of(10, 19, drain_seq=2, lost=((5, 9),)),
        drained_file_of(10, 19, drain_seq=2, previous=(EPOCH - 1, 3)),
    ],
    ids=["offsets", "epoch", "stream", "lost", "previous"],
)
def test_a_file_that_does_not_continue_the_merged_one_is_not_added(other: DrainedFile) -> None:
    assert merge(drained_file_of(0, 9), other) is None


def test_a_merged_file_ends_at_its_size() -> None:
    files = [drained_file_of(n, n, drain_seq=n + 1, payload=lambda _: b"x" * 1000) for n in range(9)]
    made = merge(*files, bytes_max=4000)
    assert made is not None
    assert len(made.footer.merged) == 3 < FILES_MAX


def test_a_footer_that_contradicts_its_parts_is_refused() -> None:
    footer = golden_merge().footer
    for wrong in (
        dataclasses.replace(footer, merged=footer.merged[1:]),
        dataclasses.replace(footer, merged=(*footer.merged[:1], *footer.merged[2:])),
        dataclasses.replace(footer, drain_seq=8),
    ):
        with pytest.raises(DrainedFileError, match="merged files"):
            FileFooter.unpack(wrong.pack())
    [name, *_] = replaced_names(name_of(golden_merge()), footer)
    with pytest.raises(DrainedFileError, match="does not replace"):
        part_of(footer, dataclasses.replace(name, drain_seq=6))


def test_a_file_with_the_name_of_another_is_not_added() -> None:
    file, other = drained_file_of(0, 9), drained_file_of(0, 9, drain_seq=2)
    with pytest.raises(DrainedFileError, match="holds"):
        NativeMerge(LARGE).add(name_of(other), content(file))


def test_a_staged_name_is_that_of_its_file_in_another_directory() -> None:
    path = golden_merge().name.removesuffix(".brim") + ".parquet"
    hidden = staged(path)
    assert Path(hidden).parent.name == "_merged"
    assert (published(hidden), published(path), is_staged(hidden), is_staged(path)) == (
        path,
        path,
        True,
        False,
    )
    assert is_parquet(hidden)
    assert FileName.parse(as_drained(hidden)) == name_of(golden_merge())
