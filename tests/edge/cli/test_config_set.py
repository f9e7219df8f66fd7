"""brim config set: one setting changes, comments and order stay, and a mistake changes nothing."""

import os
from pathlib import Path

import pytest

from edge.cli import main
from edge.cli.exit_status import Exit
from edge.config import loader

FILE = """\
# Edge of hall 3
edge_id = "hall-3"      # for ever

[limits]
topics_max = 5000       # measured

[[stream]]
name = "press"
topics = ["press/#"]    # all presses

[[bridge]]
name = "lake"
to = "file:///srv/lake"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "brim.toml"
    path.write_text(FILE)
    path.chmod(0o640)
    return path


def change(file: Path, name: str, value: str) -> int:
    return main(["config", "set", name, value, "--config", str(file)])


@pytest.mark.parametrize(
    ("name", "value", "before", "after"),
    [
        ("limits.topics_max", "6000", "topics_max = 5000 ", "topics_max = 6000 "),
        ("edge_id", "hall-4", '"hall-3"', '"hall-4"'),
        (
            "limits.retained_max_bytes",
            "32 MiB",
            "# measured\n",
            '# measured\nretained_max_bytes = "32 MiB"\n',
        ),
        ("stream.press.durability", "disk", "# all presses\n", '# all presses\ndurability = "disk"\n'),
        ("bridge.lake.linger_ms", "50", 'lake"\n', None),
        ("log.workers", "2", None, None),
        ("log_level", "debug", None, None),
        ("listener.0.port", "1884", None, None),
    ],
)
def test_a_setting_changes_and_everything_else_stays(
    file: Path, name: str, value: str, before: str | None, after: str | None
) -> None:
    status = change(file, name, value)
    if name.startswith("listener"):  # the file has no [[listener]]
        assert (status, file.read_text()) == (Exit.USAGE, FILE)
        return
    assert status == 0
    text = file.read_text()
    if before is not None and after is not None:
        assert text == FILE.replace(before, after, 1)
    for comment in ("# Edge of hall 3", "# for ever", "# measured", "# all presses"):
        assert comment in text
    assert loader.load(file) != loader.parse(FILE)
    assert file.stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
def test_a_changed_file_keeps_its_owner_and_the_links_to_it(file: Path) -> None:
    os.chown(file, 4321, 1234)
    link = file.with_name("link.toml")
    link.symlink_to(file.name)
    assert change(link, "log_level", "debug") == 0
    assert link.is_symlink()
    assert (file.stat().st_uid, file.stat().st_gid, file.stat().st_mode & 0o7777) == (4321, 1234, 0o640)
    assert 'log_level = "debug"' in file.read_text()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("limits.topics_max", "0", "below the least"),
        ("limits.topic_max", "5", "did you mean"),
        ("stream.mill.durability", "disk", "there is no [[stream]] 'mill' in the file (present: press)"),
        ("edge_id.x", "1", "edge_id is a value"),
    ],
)
def test_a_mistake_changes_nothing_and_is_named(
    file: Path, name: str, value: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert change(file, name, value) == Exit.USAGE
    assert words in capsys.readouterr().err
    assert file.read_text() == FILE


def test_an_option_of_a_sink_may_have_dots_and_a_secret_is_not_shown(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(FILE.replace("file:///srv/lake", "kafka://host:9092/t"))
    assert change(file, "bridge.lake.options.sasl.password", "s3cret") == 0
    assert "s3cret" not in capsys.readouterr().out
    assert loader.load(file).bridge[0].options == {"sasl.password": "s3cret"}


def test_a_setting_of_a_list_needs_its_entry(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert change(file, "bridge.to", "file:///srv/other") == Exit.USAGE
    assert "bridge is a list; name one of its entries" in capsys.readouterr().err
    assert change(file, "bridge.lake.to", "file:///srv/other") == Exit.OK


def test_name_value_and_file_are_needed(file: Path) -> None:
    assert main(["config", "set", "limits.topics_max", "5"]) == Exit.USAGE
    assert main(["config", "set", "limits.topics_max", "--config", str(file)]) == Exit.USAGE
