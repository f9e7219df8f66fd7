"""Numbers, ports and settings as the command shows and takes them."""

import argparse
from pathlib import Path

import pytest

from edge.cli.config_options import add_config_arguments, configured
from edge.cli.humanize import bytes_in_words, count_in_words, counted, seconds_in_words
from edge.errors import ConfigError
from edge.server.port_owner import port_owner


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (64 << 20, "64 MiB"),
        (5 << 40, "5,120 GiB"),
    ],
)
def test_sizes_are_short_and_exact_where_they_can_be(count, words):
    assert bytes_in_words(count) == words


def test_only_one_is_singular():
    assert [counted(count, "record") for count in (0, 1, 2_000)] == ["0 records", "1 record", "2,000 records"]


@pytest.mark.parametrize(("count", "words"), [(0, "0"), (1234567, "1,234,567"), (0.25, "0.2"), (12.7, "13")])
def test_counts_have_separators_and_a_fraction_only_when_small(count, words):
    assert count_in_words(count) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.44, "0.4 s"),
        (10, "10 s"),
        (60, "1 min"),
        (725, "12 min 5 s"),
        (3600, "1 h"),
        (273_600, "3 d 4 h"),
        (86_401, "1 d"),
    ],
)
def test_durations_have_their_two_largest_units(seconds, words):
    assert seconds_in_words(seconds) == words


def settings(*words: str):
    parser = argparse.ArgumentParser()
    add_config_arguments(parser)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    return configured(parser.parse_args(words))


def test_the_command_line_overrides_the_first_listener_and_the_directories(tmp_path, monkeypatch):
    file = tmp_path / "brim.toml"
    file.write_text("[[listener]]\nport = 1\n[[listener]]\nport = 2\n")
    monkeypatch.chdir(tmp_path)
    found = settings("--config", str(file), "--port", "0", "--runtime-dir", "run")
    assert [listener.port for listener in found.listener] == [0, 2]
    assert found.runtime_dir == tmp_path / "run"
    assert settings("--state-dir", "/x").state_dir == Path("/x")


def test_the_command_line_keeps_the_rules_of_the_file():
    with pytest.raises(
        ConfigError, match=r"the command line: listener\[0\]\.host: 0\.0\.0\.0 is reached from"
    ):
        settings("--host", "0.0.0.0")


def test_nobody_owns_a_port_that_nobody_listens_on():
    assert port_owner(0) == ""
