"""Reference pages docs/reference/*.md, generated from the source that defines their subjects.

Owns the list of pages and the error for a definition without a description. Never writes a fact of its own:
text stands in docstrings and tables of the source. `./dev docs` writes the pages (__main__.py);
tests/docs/test_reference.py generates them in memory and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

__all__ = ["COMMAND", "DIRECTORY", "PAGES", "MissingDescription", "generate"]

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = ROOT / "docs" / "reference"
COMMAND = "./dev docs"
PAGES = {
    "configuration.md": "configuration",
    "commands.md": "commands",
    "web-api.md": "web_api",
    "spark.md": "spark",
    "metrics.md": "metrics",
    "errors.md": "errors",
    "sys-topics.md": "sys_topics",
    "formats.md": "formats",
    "consumer-protocol.md": "consumer_protocol",
    "python.md": "python_api",
}
NEEDS = {"spark.md": ("pyspark", "pyarrow"), "web-api.md": ("starlette",)}
NOTICE = "<!-- Generated from source by `./dev docs`; edit the source, not this page. -->\n\n"


class MissingDescription(ValueError):
    """A key, verb, option, metric, topic or name without a description in its source."""


def generate() -> Mapping[str, str]:
    """Text of each page by name, without pages whose libraries are missing. Raises MissingDescription."""
    texts = {}
    for name, module in PAGES.items():
        if all(map(find_spec, NEEDS.get(name, ()))):
            page: Callable[[], str] = import_module(f"docs.generate.{module}").page
            texts[name] = NOTICE + page().rstrip() + "\n"
    return texts
