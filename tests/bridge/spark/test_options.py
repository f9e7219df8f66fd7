"""Options of format("brim"): what they mean, and that mistakes are named."""

import pytest

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")

from bridge.errors import SourceOptionError
from bridge.spark.options import SourceOptions


def test_only_a_path_is_needed() -> None:
    options = SourceOptions.read({"path": "/srv/lake"})
    assert (options.mode, options.starting, options.max_bytes, options.max_files) == (
        "FAILFAST",
        "earliest",
        1 << 30,
        None,
    )
    assert (options.edges, options.streams, options.task_bytes) == ((), (), None)


def test_names_are_taken_in_any_case_and_sizes_with_files() -> None:
    options = SourceOptions.read(
        {
            "path": "/srv/lake",
            "EDGE": "plant-*, kiln",
            "maxBYTESpertrigger": "256m",
            "taskbytes": "32MB",
            "mode": "permissive",
            "failOnDataLoss": "FALSE",
            "startingOffsets": '{"plant-7": 12}',
            "endingOffsets": '{"plant-7": 20}',
        }
    )
    assert options.edges == ("plant-*", "kiln")
    assert (options.max_bytes, options.task_bytes) == (256 << 20, 32 << 20)
    assert (options.mode, options.fail_on_data_loss) == ("PERMISSIVE", False)
    assert (options.starting, options.ending) == ({"plant-7": 12}, {"plant-7": 20})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "path is not set"),
        ({"provider": "brim"}, "CREATE TABLE ... USING brim is not possible"),
        ({"edg": "x"}, "no option 'edg'"),
        ({"mode": "LENIENT"}, "mode is 'LENIENT'"),
        ({"maxFilesPerTrigger": "0"}, "maxFilesPerTrigger is '0'"),
        ({"taskBytes": "many"}, "taskBytes is 'many'"),
        ({"startingOffsets": "first"}, "startingOffsets is 'first'"),
        ({"startingOffsets": '{"a": -1}'}, "startingOffsets is"),
        ({"endingOffsets": "earliest"}, "endingOffsets is"),
        ({"decoder": "numpy"}, "no option 'decoder'"),
        ({"view": "rows"}, "view is 'rows'"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss is 'maybe'"),
    ],
)
def test_a_mistake_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(SourceOptionError, match=said):
        SourceOptions.read(given if "path" in said else {"path": "/srv/lake", **given})


def test_the_option_that_was_meant_is_suggested() -> None:
    with pytest.raises(SourceOptionError) as caught:
        SourceOptions.read({"path": "/srv/lake", "maxfilepertrigger": "3"})
    assert caught.value.hint == "did you mean maxFilesPerTrigger?"
