"""A campaign in chunks: each is a run of its own, and one line of JSON in a file that adds them up.

    {"at": "2026-01-31T12:00:00", "commit": "1a2b3c4", "campaign": "log", "seeds": [0, 800], "seconds": 100,
     "wrong": [], "counts": {"states": 100000}}

`seeds` are the first one and the one behind the last.  A commit that ends with "+" had uncommitted changes.
"""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.campaigns.ledger import show
from tests.support.project import ROOT


def add(
    path: Path,
    campaign: str,
    seeds: tuple[int, int],
    seconds: int,
    wrong: Sequence[str],
    counts: Mapping[str, int],
) -> None:
    """One more chunk."""
    chunk = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "commit": _commit(),
        "campaign": campaign,
        "seeds": seeds,
        "seconds": seconds,
        "wrong": list(wrong),
        "counts": dict(counts),
    }
    with path.open("a") as file:
        file.write(json.dumps(chunk) + "\n")


def next_seed(path: Path | None, campaign: str) -> int:
    """The seed behind all that chunks have run."""
    return max((it["seeds"][1] for it in _chunks(path) if it["campaign"] == campaign), default=0)


def show_sums(path: Path) -> int:
    """A table for each campaign.  Exit status: 1 if anything was ever wrong."""
    chunks = list(_chunks(path))
    for name in dict.fromkeys(it["campaign"] for it in chunks):
        its = [it for it in chunks if it["campaign"] == name]
        total: Counter[str] = Counter()
        for it in its:
            total.update(it["counts"])
        commits = list(dict.fromkeys(it["commit"] for it in its))
        facts = {
            "chunks": len(its),
            "wrong": sum(len(it["wrong"]) for it in its),
            **dict(total.most_common()),
        }
        facts |= {"from commit": commits[0], "to commit": commits[-1]}
        show(name, {**facts, "seconds": sum(it["seconds"] for it in its)})
    return 1 if any(it["wrong"] for it in chunks) else 0


def _chunks(path: Path | None) -> Iterator[dict[str, Any]]:
    if path is not None and path.exists():
        for line in path.read_text().splitlines():
            yield json.loads(line)


def _commit() -> str:
    def git(*arguments: str) -> str:
        run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return run.stdout.strip()

    return (git("rev-parse", "--short", "HEAD") or "?") + ("+" if git("status", "--porcelain") else "")
