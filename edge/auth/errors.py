"""Errors of authentication and authorization.

EdgeError
    AuthFileError     .problems: every mistake in a password or ACL file, each with its line
    PluginError       a plug-in cannot be loaded, or not with these options
"""

from __future__ import annotations

from pathlib import Path

from edge.config.regular_file import require_regular
from edge.errors import EdgeError, InvalidFile

_ACCESS_REMEDY = "let the broker's user read it, by chgrp and chmod g+r"
_OTHER_REMEDY = "name a regular file"


class AuthFileError(InvalidFile):
    """A password or ACL file cannot be used."""


def text_of(file: Path, *, missing: str = "correct the path") -> str:
    """The text of a password or ACL file. Raises AuthFileError; `missing`: remedy for an absent file."""
    try:
        require_regular(file)
        return file.read_text(encoding="utf-8")
    except OSError as error:
        remedy = _ACCESS_REMEDY if isinstance(error, PermissionError) else _OTHER_REMEDY
        if isinstance(error, FileNotFoundError):
            remedy = missing
        problem = f"{file}: cannot be read: {error.strerror}; {remedy}"
        raise AuthFileError([problem], unreadable=True) from error
    except UnicodeDecodeError as error:
        raise AuthFileError([f"{file}:1: byte {error.start} is not UTF-8"]) from error


class PluginError(EdgeError):
    """A plug-in cannot be loaded, or not with these options."""
