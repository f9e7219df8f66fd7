"""Page of the Spark jobs: help and options of each `brim spark JOB`, the verdicts, and the source's options.

Importing the jobs needs the extra `spark`; without it this page is not generated.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from docs.generate.commands import arguments_table, help_text
from docs.generate.markdown import prose
from docs.generate.source import doc_of
from edge.cli.spark import JOBS


def page() -> str:
    """Text of spark.md."""
    parts = ["# Spark jobs\n"]
    for name, about in JOBS.items():
        job = importlib.import_module(f"bridge.spark.jobs.{name}")
        parser = job.arguments()
        parts += [f"## brim spark {name}\n", prose(about[:1].upper() + about[1:]) + ".\n"]
        parts += [help_text(doc_of(job, name)), arguments_table(parser, f"brim spark {name}")]
    parts += _modules(
        {
            "bridge.spark.verdict": "Verdicts",
            "bridge.spark.options": "Options of the source",
            "bridge.payloads.schema": "Payload schema",
        }
    )
    return "\n".join(parts)


def _modules(titles: dict[str, str]) -> Iterator[str]:
    for name, title in titles.items():
        module = importlib.import_module(name)
        yield f"## {title}\n\n{help_text(doc_of(module, name.rpartition('.')[2]))}"
