"""Positions of TOML keys: the line of each key, which tomllib does not report.

Owns positions only. The text must already have passed tomllib: nothing is validated here, and values are
skipped. A path is a tuple of keys and list indices: ("stream", 0, "topics", 1).
"""

from __future__ import annotations

import re

Path = tuple[str | int, ...]

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY_PART = re.compile(r"""[ \t]*(?:([A-Za-z0-9_-]+)|"((?:[^"\\]|\\.)*)"|'([^']*)')[ \t]*""")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|' r"'''.*?'{3,5}|" r'"(?:[^"\\\n]|\\.)*"|' r"'[^'\n]*'", re.DOTALL
)
_SCALAR = re.compile(r"[^,\]}#\n]*")


def key_lines(text: str) -> dict[Path, int]:
    """The line, from 1, of every table, key and list element in `text`."""
    return _Scanner(text).scan()


def line_of(lines: dict[Path, int], path: Path) -> int:
    """The line of `path`, or of the nearest table around it; 1 for the whole file."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self.last_index: dict[Path, int] = {}  # index of the current element of each array of tables
        self._line, self._line_at = 1, 0

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        self._skip_space()
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip_space()
        return self.lines

    def _header(self) -> Path:
        line, is_array = self._line_here(), self.text.startswith("[[", self.at)
        self.at += 2 if is_array else 1
        keys = self._dotted_key()
        self.at += 2 if is_array else 1
        path: Path = ()
        for key in keys[:-1]:
            path = self._inside((*path, key))
        path = (*path, keys[-1])
        if is_array:
            self.last_index[path] = self.last_index.get(path, -1) + 1
            self.lines.setdefault(path, line)
        path = self._inside(path)
        self.lines[path] = line
        return path

    def _inside(self, path: Path) -> Path:
        """`path`, or its newest element if it is an array of tables."""
        return (*path, self.last_index[path]) if path in self.last_index else path

    def _pair(self, table: Path) -> None:
        line, path = self._line_here(), table
        for key in self._dotted_key():
            path = (*path, key)
            self.lines.setdefault(path, line)
        self.at += 1  # the equals sign
        self._value(path)

    def _dotted_key(self) -> list[str]:
        keys = []
        while match := _KEY_PART.match(self.text, self.at):
            self.at = match.end()
            keys.append(next(part for part in match.groups() if part is not None))
            if not self.text.startswith(".", self.at):
                break
            self.at += 1
        return keys

    def _value(self, path: Path) -> None:
        self._skip_space()
        opening = self.text[self.at]
        if opening == "[":
            self._list(path)
        elif opening == "{":
            self._inline_table(path)
        else:
            match = _STRING.match(self.text, self.at) or _SCALAR.match(self.text, self.at)
            assert match is not None  # the pattern of a scalar matches any text
            self.at = match.end()

    def _list(self, path: Path) -> None:
        self.at += 1
        index = 0
        while self._next_element("]"):
            self.lines[(*path, index)] = self._line_here()
            self._value((*path, index))
            index += 1

    def _inline_table(self, path: Path) -> None:
        self.at += 1
        while self._next_element("}"):
            self._pair(path)

    def _next_element(self, closing: str) -> bool:
        """Move past commas to the next element; False, after the bracket, if there is none."""
        self._skip_space()
        while self.text[self.at] == ",":
            self.at += 1
            self._skip_space()
        if self.text[self.at] != closing:
            return True
        self.at += 1
        return False

    def _skip_space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def _line_here(self) -> int:
        """Line of `at`, counted from the position of the last call."""
        self._line += self.text.count("\n", self._line_at, self.at)
        self._line_at = self.at
        return self._line
