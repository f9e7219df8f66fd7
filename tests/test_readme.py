"""What README.md shows can be typed: its configuration is read, defaults and commands are as it says."""

import json
import re

import msgspec
import pytest

from edge.config import Config, Listener, Stream, parse
from tests.support.house import ROOT, dev

README = (ROOT / "README.md").read_text()
TOML = re.findall(r"^```toml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
PROTOCOL = README.partition("## Protocol\n")[2].partition("\n## ")[0].partition("\nWhere the spec")[0]
PROOFS = re.findall(r"`(v311-\w+|v5-\w+|[\w/]+\.py): (.+?)`", PROTOCOL)
DEFAULTS = re.findall(r"^\| `(\w+)\.(\w+)` \| `(.+?)` \|", README, re.MULTILINE)


def defaults() -> dict[str, object]:
    """What a section says when the file says nothing."""
    config = Config(listener=(Listener(),), stream=(Stream(name="default", topics=("#",)),))
    sections = {name: value for name in config.__struct_fields__ if (value := getattr(config, name)) != ()}
    return {name: value[0] if isinstance(value, tuple) else value for name, value in sections.items()}


def test_the_configuration_that_is_shown_is_read() -> None:
    assert len(TOML) == 1
    config = parse(TOML[0])
    assert (config.edge_id, config.stream[0].name, config.bridge[0].streams) == (
        "plant-7",
        "press",
        ("press",),
    )
    assert config.listener == Config().listener  # "The default, written out."


def test_there_is_a_table_of_settings() -> None:
    assert len(DEFAULTS) > 10


@pytest.mark.parametrize(("section", "setting", "shown"), DEFAULTS)
def test_a_setting_has_the_default_that_is_shown(section: str, setting: str, shown: str) -> None:
    values = msgspec.to_builtins(defaults()[section], enc_hook=int)  # of DefaultBytes
    assert json.loads(msgspec.json.encode(values[setting])) == json.loads(shown)


def test_each_command_of_dev_is_one() -> None:
    verbs = set(re.findall(r"\./dev (\w+)", README + (ROOT / "CONTRIBUTING.md").read_text()))
    assert {"demo", "test"} <= verbs <= set(dev.VERBS)


def test_each_file_that_is_named_is_there() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w*(?:\.\w+)?|\w+\.(?:py|md))`", README))
    assert "ringbuf/c/" in named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_each_feature_of_the_protocol_names_what_proves_it() -> None:
    rows = [row for row in PROTOCOL.splitlines() if row.startswith("| ") and not row.startswith("| **")]
    assert len(rows) > 40
    assert [row for row in rows[1:] if ": " not in row] == []


@pytest.mark.parametrize(("where", "words"), sorted(set(PROOFS)))
def test_what_proves_a_feature_is_there(where: str, words: str) -> None:
    if where.endswith(".py"):
        text, begin = (ROOT / "tests/edge" / where).read_text(), f"def {words}"
    else:
        text, begin = (ROOT / f"tests/golden/mqtt/vectors/{where}.txt").read_text(), f"# {words}"
    assert any(line.removeprefix("async ").startswith(begin) for line in text.splitlines())
