"""Test vectors of the consumers' protocol: tests/golden/consumers/vectors.txt, read line by line.

A stanza begins with a line without an indent: its kind and its name. Further lines are a word and a text. A
line that begins with # is a comment.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

VECTORS = Path(__file__).parents[1] / "golden" / "consumers" / "vectors.txt"


@dataclass(slots=True)
class Vector:
    """One stanza. `lines`: texts by their first word."""

    title: str
    lines: dict[str, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.title

    def __getitem__(self, word: str) -> str:
        (text,) = self.lines[word]
        return text

    def all(self, word: str) -> list[str]:
        """All texts with this word."""
        return self.lines.get(word, [])

    def bytes_of(self, word: str) -> bytes:
        """A text of hexadecimal digits."""
        return bytes.fromhex(self[word])


def vectors(*kinds: str) -> list[Vector]:
    """The stanzas of these kinds."""
    found: list[Vector] = []
    for line in VECTORS.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        if not line.startswith(" "):
            found.append(Vector(line))
            continue
        word, _, text = line.strip().partition(" ")
        found[-1].lines.setdefault(word, []).append(text)
    return [vector for vector in found if vector.title.split(" ")[0] in kinds]


def json_text(content: object) -> str:
    """JSON without spaces, keys in their order, characters as they are."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)
