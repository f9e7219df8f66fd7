"""Errors of authentication and authorization.

EdgeError
    AuthFileError     .problems: every mistake in a password or ACL file, each with its line
    PluginError       a plug-in cannot be loaded, or not with these options
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edge.errors import EdgeError

__all__ = ["AuthFileError", "PluginError", "text_of"]

_ACCESS_REMEDY = "let the broker's user read it, by chgrp and chmod g+r"


class AuthFileError(EdgeError):
    """A file cannot be used. `problems`: `file:line: ...` each, in the order of the file."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def text_of(file: Path, *, missing: str = "correct the path") -> str:
    """The text of a password or ACL file. Raises AuthFileError; `missing`: remedy for an absent file."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        remedy = missing if isinstance(error, FileNotFoundError) else _ACCESS_REMEDY
        raise AuthFileError([f"{file}:1: cannot be read: {error.strerror}; {remedy}"]) from error
    except UnicodeDecodeError as error:
        raise AuthFileError([f"{file}:1: byte {error.start} is not UTF-8"]) from error


class PluginError(EdgeError):
    """A plug-in cannot be loaded, or not with these options."""
