"""Command of `./dev docs`: writes the reference pages, and names those that have changed."""

from __future__ import annotations

from docs.generate import DIRECTORY, generate

DIRECTORY.mkdir(exist_ok=True)
for name, text in generate().items():
    path = DIRECTORY / name
    changed = not path.exists() or path.read_text(encoding="utf-8") != text
    path.write_text(text, encoding="utf-8")
    print(f"docs/reference/{name}: {'written' if changed else 'unchanged'}")
