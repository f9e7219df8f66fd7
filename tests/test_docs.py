"""README, ARCHITECTURE and docs/: all files, settings, commands and names in them exist; two are short."""

import ast
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

import brim
from edge.config.listener import Listener, Tls
from edge.config.loader import parse
from edge.config.schema import Bridge as BridgeSection
from edge.config.schema import Config, Plugin, Producer, Stream
from edge.observe.metric_families import METRICS
from tests.support import documents
from tests.support.documents import ARCHITECTURE, DOCUMENTS, PAGES, README, Block, blocks, prose, short
from tests.support.project import ROOT, dev
from tests.test_words import PATTERNS

README_WORDS = 900
ARCHITECTURE_LINES = 150

HAS_SPARK = importlib.util.find_spec("pyspark") is not None

# Roots of paths in backticks; a path without one of them is outside of the repository, or an example.
FOLDERS = "benchmarks|bridge|brim|docs|edge|examples|locks|persistence|ringbuf|tests"
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./-]*|(?:build|pyproject)\.\w+)`")
MODULE = re.compile(rf"`((?:{FOLDERS})(?:\.(?!toml|service)\w+)+)`")
METRIC = re.compile(r"`(brim_\w+)`")

SECTIONS = {
    **{name: getattr(Config(), name).__struct_fields__ for name in Config.__struct_fields__
       if hasattr(getattr(Config(), name), "__struct_fields__")},
    "listener": Listener.__struct_fields__, "stream": Stream.__struct_fields__,
    "bridge": BridgeSection.__struct_fields__, "producer": Producer.__struct_fields__,
    "tls": Tls.__struct_fields__, "plugin": Plugin.__struct_fields__,
}  # fmt: skip
KEY = re.compile(rf"`(?:\[\[?)?({'|'.join(SECTIONS)})(?:\]\]? |\.)(\w+)(?: = [^`]+)?`")
SECTION = re.compile(r"`\[\[?([\w.]+)\]\]?`")
# Files whose names look like a key of the configuration.
FILES = {("sessions", "spill"), ("sessions", "state")}


def test_readme_has_at_most_900_words() -> None:
    assert len(README.read_text().split()) <= README_WORDS


def test_architecture_has_at_most_150_lines() -> None:
    assert len(ARCHITECTURE.read_text().splitlines()) <= ARCHITECTURE_LINES


@pytest.mark.parametrize("page", DOCUMENTS, ids=short)
def test_a_document_uses_plain_words(page: Path) -> None:
    text = re.sub(r"`[^`]*`", "", prose(page))
    assert [(found[0], remedy) for words, remedy in PATTERNS for found in words.finditer(text)] == []


@pytest.mark.parametrize("block", blocks("toml"), ids=lambda block: short(block.page))
def test_a_configuration_in_a_document_is_accepted(block: Block) -> None:
    if "payload" in (table := tomllib.loads(block.text)):
        schema = pytest.importorskip(
            "bridge.payloads.schema", reason="payload schemas require the extra spark"
        )
        assert len(schema.Payloads.of(table).rules) == len(table["payload"])
    else:
        assert parse(block.text, base=ROOT) != Config()


def test_the_default_listener_of_the_tutorial_is_the_default() -> None:
    config = parse(documents.block_of("docs/tutorials/first-minutes.md", "toml"))
    assert config.listener == Config().listener


@pytest.mark.parametrize("page", DOCUMENTS, ids=short)
def test_a_file_that_a_document_names_exists(page: Path) -> None:
    assert [name for name in PATH.findall(page.read_text()) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", DOCUMENTS, ids=short)
def test_a_module_that_a_document_names_exists(page: Path) -> None:
    def exists(name: str) -> bool:
        parts = name.split(".")
        if parts[0] == "brim":  # a name of the package, which need not be a module
            found: object = brim
            for part in parts[1:]:
                found = getattr(found, part, None)
            return found is not None
        tails = [ROOT.joinpath(*parts[:end]) for end in range(len(parts), 1, -1)]
        return any(tail.is_dir() or tail.with_suffix(".py").exists() for tail in tails)

    names = {name for name in MODULE.findall(prose(page)) if not _is_key(name)}
    assert [name for name in sorted(names) if not exists(name)] == []


def _is_key(name: str) -> bool:
    section, _, key = name.partition(".")
    return key in SECTIONS.get(section, ())


@pytest.mark.parametrize("page", DOCUMENTS, ids=short)
def test_a_setting_that_a_document_names_exists(page: Path) -> None:
    named = {pair for pair in KEY.findall(prose(page)) if pair not in FILES}
    assert [f"{section}.{key}" for section, key in sorted(named) if key not in SECTIONS[section]] == []
    sections = {name.split(".")[0] for name in SECTION.findall(prose(page))}
    assert sorted(sections - set(Config.__struct_fields__) - {"payload"}) == []


@pytest.mark.parametrize("page", DOCUMENTS, ids=short)
def test_a_metric_that_a_document_names_exists(page: Path) -> None:
    named = sorted(set(METRIC.findall(prose(page))))
    assert [name for name in named if not {name, f"{name}_total"} & METRICS.keys()] == []


@pytest.mark.parametrize("page", [README, ARCHITECTURE], ids=short)
def test_a_link_of_a_document_at_the_top_leads_somewhere(page: Path) -> None:
    """Links within docs/ are checked by mkdocs."""
    for link in documents.links(page):
        target, _, anchor = link.partition("#")
        assert (ROOT / target).is_file(), link
        assert not anchor or anchor in documents.anchors(ROOT / target), link


@pytest.mark.parametrize(
    ("page", "words"),
    list(documents.commands("brim")),
    ids=lambda it: short(it) if isinstance(it, Path) else " ".join(it),
)
def test_a_command_of_a_document_is_accepted(page: Path, words: list[str]) -> None:
    if words[0] == "spark" and not HAS_SPARK:
        pytest.skip("jobs require the extra spark")
    documents.parse(words)


@pytest.mark.parametrize("page", DOCUMENTS, ids=short)
def test_a_verb_that_a_document_names_exists(page: Path) -> None:
    from edge.cli import VERBS

    assert set(re.findall(r"`brim ([a-z]+)", page.read_text())) <= set(VERBS)
    assert set(re.findall(r"\./dev (\w+)", page.read_text())) <= set(dev.VERBS)


def test_an_example_that_a_document_runs_exists() -> None:
    named = [words[1] for _, words in documents.commands("python") if words[0] == "-m"]
    assert {"examples.sample_lake", "examples.first_look"} <= set(named)
    assert [name for name in named if name != "venv" and importlib.util.find_spec(name) is None] == []


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: short(block.page))
def test_what_python_in_a_document_imports_exists(block: Block) -> None:
    if "bridge.spark" in block.text and not HAS_SPARK:
        pytest.skip("requires the extra spark")
    statements = [
        node for node in ast.parse(block.text).body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    exec(compile(ast.Module([*statements], []), str(block.page), "exec"), {})


def test_names_that_a_checker_misses_would_pass_unseen() -> None:
    """Each expression finds names in the documents as they are."""
    text = "".join(map(prose, PAGES))
    for expression in (PATH, MODULE, METRIC, KEY, SECTION):
        assert len(set(expression.findall(text))) >= 3, expression.pattern


# ---- the conformance table -----------------------------------------------------------------------------

PROTOCOL = (ROOT / "docs/explanation/protocol.md").read_text()
ROWS = [row for row in PROTOCOL.partition("## Choices")[0].splitlines() if row.startswith("| ")]
WEB_CONSOLE = (ROOT / "docs/how-to/web-console.md").read_text()
PROOFS = re.findall(r"`(v311-\w+|v5-\w+|[\w/]+\.py): (.+?)`", PROTOCOL + WEB_CONSOLE)


def test_each_feature_of_the_protocol_names_its_proof() -> None:
    rows = [row for row in ROWS if not row.startswith("| **")]
    assert len(rows) > 40
    assert [row for row in rows[1:] if ": " not in row] == []


@pytest.mark.parametrize(("where", "words"), sorted(set(PROOFS)))
def test_the_proof_of_a_feature_exists(where: str, words: str) -> None:
    if where.endswith(".py"):
        text, begin = (ROOT / "tests" / where).read_text(), f"def {words}"
    else:
        text, begin = (ROOT / f"tests/golden/mqtt/vectors/{where}.txt").read_text(), f"# {words}"
    assert any(line.removeprefix("async ").startswith(begin) for line in text.splitlines())
