"""Page of errors: each class with its meaning, and each message with its remedy.

edge/cli/error_catalog.py reads them from the source.
"""

from __future__ import annotations

from docs.generate.markdown import code, prose, table
from edge.cli.error_catalog import GAP, PACKAGES, ErrorClass, catalog

_HEADER = ("Message", "Remedy")


def page() -> str:
    """Text of errors.md."""
    classes = catalog()
    parts = [
        "# Errors\n",
        "Every error of a command or a library has a class, a message and, if somebody can act, a remedy. "
        "Commands print the message, the remedy, and the name of the class as `brim explain NAME`, which "
        "prints its part of this page offline. With `--json` a command prints its error as one JSON "
        "object with `verb`, `error`, `hint` and `code`, on standard error; wrong arguments are text. "
        f"{GAP} stands for a value.\n",
    ]
    for package, title in PACKAGES.items():
        parts.append(f"## {title}\n")
        parts += [_section(it) for it in classes.values() if it.module.split(".")[0] == package]
    return "\n".join(parts)


def _section(error: ErrorClass) -> str:
    above = ", ".join(code(base) for base in error.bases)
    lines = [
        f"### {error.name}\n",
        f"{code(f'{error.module}.{error.name}')}, a {above}. {prose(error.about)}\n",
    ]
    if error.messages:
        rows = [(prose(message), prose(remedy)) for message, remedy in sorted(error.messages)]
        lines.append(table(_HEADER, rows))
    return "\n".join(lines)
