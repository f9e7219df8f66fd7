"""Errors of authentication and authorization.

EdgeError
    AuthFileError     .problems: every mistake in a password or ACL file, each with its line
    PluginError       a plug-in cannot be loaded, or not with these options
"""

from __future__ import annotations

from collections.abc import Sequence

from edge.errors import EdgeError

__all__ = ["AuthFileError", "PluginError"]


class AuthFileError(EdgeError):
    """A file cannot be used. `problems`: `file:line: ...` each, in the order of the file."""

    def __init__(self, problems: Sequence[str], *, hint: str = "") -> None:
        super().__init__("\n".join(problems), hint=hint)
        self.problems = tuple(problems)


class PluginError(EdgeError):
    """A plug-in cannot be loaded, or not with these options."""
