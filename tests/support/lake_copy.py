"""A lake for scenarios: a directory or a bucket, with a copy of its files for a ledger to read."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.support.s3_server import make_bucket, options, s3_server

Kind = Literal["directory", "s3"]


class Lake:
    """The URL of a lake, its settings, and its files."""

    def __init__(self, url: str, settings: dict[str, str], root: Path) -> None:
        self.url = url
        self._settings = settings
        self._root = root

    def bridge(self, more: str = "") -> str:
        """A [[bridge]] of a broker's configuration that drains there."""
        options = "".join(f"{key} = {json.dumps(value)}\n" for key, value in self._settings.items())
        table = f"[bridge.options]\n{options}" if options else ""
        return f'[[bridge]]\nname = "lake"\nlinger_ms = 0\nto = {json.dumps(self.url)}\n{more}\n{table}'

    def files(self) -> Path:
        """A directory with all files of the lake, as they are now."""
        if self._settings:
            import obstore
            from obstore.store import from_url

            make: Any = from_url  # its overloads want literal option names
            store = make(self.url, client_options={"allow_http": True}, **self._settings)
            for entry in obstore.list(store).collect():
                path = self._root / entry["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(bytes(obstore.get(store, entry["path"]).bytes()))
        return self._root


@contextmanager
def lake_of(kind: Kind, root: Path) -> Iterator[Lake]:
    """A lake that is `root`, or a bucket that is copied there."""
    if kind == "directory":
        yield Lake(root.as_uri(), {}, root)
        return
    pytest.importorskip("obstore", reason="needs obstore: pip install 'brim[objects]'")
    pytest.importorskip("moto", reason="needs moto: pip install 'moto[server]'")
    with s3_server() as server:
        make_bucket(server, "lake")
        yield Lake("s3://lake/plant", options(server), root)
