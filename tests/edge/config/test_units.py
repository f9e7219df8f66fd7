"""Sizes and durations with their units, in the configuration file and on the command line."""

import argparse
from decimal import Decimal

import pytest

from edge.cli.argument_types import port, positive, seconds, size, whole_seconds
from edge.config.loader import parse
from edge.config.units import InvalidUnit, milliseconds_of, size_of
from edge.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 B", 1),
        ("64 KiB", 64 << 10),
        ("64KiB", 64 << 10),
        (" 8 mib ", 8 << 20),
        ("2 GiB", 2 << 30),
        ("1 TiB", 1 << 40),
        ("1 KB", 1_000),
        ("3 MB", 3_000_000),
        ("1.5 GB", 1_500_000_000),
        ("0.5 KiB", 512),
    ],
)
def test_a_size_is_read(text: str, expected: int) -> None:
    assert size_of(text) == expected
    assert size(text) == expected


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("1 ms", 1),
        ("20 s", 20_000),
        ("5 min", 300_000),
        ("1 h", 3_600_000),
        ("7 d", 7 * 86_400_000),
        ("1.5h", 5_400_000),
        ("0.5 MS", Decimal("0.5")),
    ],
)
def test_a_duration_is_read(text: str, expected_ms: int) -> None:
    assert milliseconds_of(text) == expected_ms
    assert seconds(text) == float(expected_ms) / 1000


WRONG = ["", "1", "KiB", "1 Kib/s", "-1 KiB", "1e3 KiB", "1,5 KiB", "٣ KiB", "1 Mo", "9" * 99 + "B", "1\n\nB"]


@pytest.mark.parametrize("text", WRONG, ids=ascii)
def test_a_text_that_is_no_size_or_duration_is_refused_with_the_units(text: str) -> None:
    with pytest.raises(InvalidUnit, match=r"allowed units: B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"):
        size_of(text)
    with pytest.raises(InvalidUnit, match=r"allowed units: ms, s, min, h, d"):
        milliseconds_of(text)


def test_a_part_of_a_byte_is_refused() -> None:
    with pytest.raises(InvalidUnit, match=r"1.5 bytes are not a whole number"):
        size_of("1.5 B")


TEXT = """
[limits]
packet_max_bytes = "128 KB"
session_expiry_s = "7 d"
connect_timeout_s = "1 min"
[quota.user]
queues_max_bytes = "1 GB"
[log]
retain_s = "12 h"
scrub_bytes_per_s = "4 MiB/s"
[consumers]
lease_ms = "1.5 s"
[[stream]]
name = "a"
topics = ["a"]
ring_bytes = "4 MiB"
queue_timeout_ms = "500 ms"
[[bridge]]
name = "lake"
to = "file:///lake"
rate_bytes_s = "1 MB"
linger_ms = "2s"
options = { part_bytes = "7", timeout_s = "30 seconds" }
"""


def test_units_are_accepted_wherever_the_file_has_a_size_or_a_duration() -> None:
    config = parse(TEXT)
    assert config.limits.packet_max_bytes == 128_000
    assert config.limits.session_expiry_s == 7 * 86_400
    assert config.limits.connect_timeout_s == 60
    assert config.quota.user.queues_max_bytes == 1_000_000_000
    assert config.log.retain_s == 43_200
    assert config.log.scrub_bytes_per_s == 4 << 20
    assert config.consumers.lease_ms == 1_500
    assert (config.stream[0].ring_bytes, config.stream[0].queue_timeout_ms) == (4 << 20, 500)
    assert (config.bridge[0].rate_bytes_s, config.bridge[0].linger_ms) == (1_000_000, 2_000)
    assert config.bridge[0].options == {"part_bytes": "7", "timeout_s": "30 seconds"}, "text stays text"


def test_plain_numbers_have_the_unit_of_their_key() -> None:
    assert parse("[limits]\nsession_expiry_s = 60").limits.session_expiry_s == 60


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            '[limits]\nsession_expiry_s = "7 days"',
            "invalid duration '7 days' (allowed units: ms, s, min, h, d",
        ),
        ('[limits]\nsession_expiry_s = "5 m"', "allowed units: ms, s, min"),
        ('[limits]\nsession_expiry_s = "500 ms"', "0.5 is not a whole number"),
        ('[limits]\npacket_max_bytes = "1 Mo"', "invalid size '1 Mo' (allowed units: B, KB"),
        ('[limits]\nconnect_timeout_s = "1 h"', "3600 is above the limit, 300"),
        ('[limits]\nsessions_max = "1 KB"', "'1 KB' is not a number"),
    ],
)
def test_a_wrong_unit_is_reported_on_its_line(line: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(line)
    (found,) = error.value.problems
    assert found.startswith("brim.toml:2: limits.")
    assert problem in found


@pytest.mark.parametrize("text", ["nan", "inf", "x", "1 hour", ""])
def test_a_wrong_duration_on_the_command_line_names_the_units(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="allowed units: ms, s, min, h, d"):
        seconds(text)
    with pytest.raises(argparse.ArgumentTypeError):
        positive(text)
    with pytest.raises(argparse.ArgumentTypeError):
        port(text)


def test_plain_numbers_on_the_command_line_are_seconds_and_bytes() -> None:
    assert (seconds("1.5"), whole_seconds("60"), size("4096"), port("1883")) == (1.5, 60, 4096, 1883)
    with pytest.raises(argparse.ArgumentTypeError, match="not a whole number of seconds"):
        whole_seconds("500 ms")
    for wrong in ("0", "65536", "80000", "-1", "9" * 5000, "٣"):
        with pytest.raises(argparse.ArgumentTypeError, match=r"invalid port .* \(allowed: 1 to 65535\)"):
            port(wrong)
