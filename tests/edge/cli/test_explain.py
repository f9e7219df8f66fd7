"""Each error of a command has a code, which `brim explain` explains without a network."""

import json
from pathlib import Path

import pytest

from bridge.errors import BridgeError
from edge.cli import main
from edge.cli.error_catalog import catalog
from edge.cli.error_text import code_of
from edge.client.errors import CannotConnect
from edge.errors import EdgeError
from tests.support.project import ROOT

Out = pytest.CaptureFixture[str]


def test_a_command_prints_the_code_of_its_error_and_explain_takes_it(tmp_path: Path, capsys: Out) -> None:
    assert main(["status", "--runtime-dir", str(tmp_path)]) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.strip() == "see: brim explain BrokerUnreachable"
    assert main(last.split()[2:]) == 0
    text = capsys.readouterr().out
    assert text.startswith("BrokerUnreachable  (edge.errors)")
    assert "start one with `brim run`" in text


def test_an_error_of_json_output_is_one_object_with_its_code(tmp_path: Path, capsys: Out) -> None:
    assert main(["status", "--json", "--runtime-dir", str(tmp_path)]) == 3
    out, err = capsys.readouterr()
    found = json.loads(err)
    assert out == ""
    assert (found["code"], "brim run" in found["hint"]) == ("BrokerUnreachable", True)


def test_every_code_is_explained_and_has_a_place_in_the_reference(capsys: Out) -> None:
    assert main(["explain", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    assert len(found) > 50
    for error in found:
        assert error["about"], error
        assert f"\n### {error['code']}\n" in page
    assert main(["explain"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(found)


def test_one_class_is_read_as_among_all() -> None:
    every = catalog()
    for name in ("CannotConnect", "ConfigError", "SourceOptionError"):
        assert catalog(name) == {name: every[name]}


def test_a_wrong_code_gets_the_nearest_one(capsys: Out) -> None:
    assert main(["explain", "cannotconect"]) == 2
    assert "did you mean `brim explain CannotConnect`?" in capsys.readouterr().err
    assert main(["explain", "../../etc/passwd"]) == 2
    assert "`brim explain` lists all" in capsys.readouterr().err


@pytest.mark.parametrize("error", [EdgeError("x"), BridgeError("x"), ValueError("x")])
def test_a_root_and_a_foreign_error_have_no_code(error: Exception) -> None:
    assert code_of(error) == ""
    assert code_of(CannotConnect("x")) == "CannotConnect"


def test_the_list_has_whole_sentences(capsys: Out) -> None:
    assert main(["explain"]) == 0
    texts = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert texts["BrimError"].endswith("(brim.errors shows the whole tree)")
    assert not [text for text in texts.values() if text.count("(") != text.count(")")]
