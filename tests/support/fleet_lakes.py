"""Lakes and machines of a fleet for tests: a directory or a bucket, with a table or without."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleet import Lake, Ledger, Machine
from tests.support.fleet_table import FleetTable
from tests.support.s3_server import make_bucket, options


def directory_lake(directory: Path, *, table: bool = False) -> Lake:
    """A lake in a new directory below `directory`."""
    root = directory / "lake"
    root.mkdir()
    made = FleetTable(str(root), directory / "table") if table else None
    return Lake(root.as_uri(), lambda: root, table=made)


def s3_lake(server: str, bucket: str, directory: Path, *, table: bool = False) -> Lake:
    """A lake in a new bucket of the server at this URL; `directory` gets the copy of its files."""
    obstore = pytest.importorskip("obstore", reason="needs obstore: pip install 'brim[objects]'")
    make_bucket(server, bucket)
    store = obstore.store.S3Store(bucket, client_options={"allow_http": True}, **options(server))

    def copy() -> Path:
        root = directory / "copy"
        for entry in obstore.list(store).collect():
            path = root / entry["path"]
            if not path.exists() and not path.name.startswith("."):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(bytes(obstore.get(store, entry["path"]).bytes()))
        return root

    query = f"region=us-east-1&scheme=http&endpoint_override={server.removeprefix('http://')}"
    url = f"s3://test:test@{bucket}?{query}"
    made = FleetTable(url, directory / "table") if table else None
    return Lake(f"s3://{bucket}", copy, options(server), made)


@contextmanager
def fleet_in(
    lake: Lake, directory: Path, runtime_directory: Path, patch: pytest.MonkeyPatch, **settings: Any
) -> Iterator[Callable[..., Machine]]:
    """Yield machine(name, **settings), which makes a machine.  All have one ledger; the end kills them.

    `settings` here hold for all machines, unless machine() has others.
    """
    made: list[Machine] = []
    ledger = Ledger()

    def make(name: str, *, clock: str = "", **more: Any) -> Machine:
        if clock:
            patch.setenv("BRIM_TEST_CLOCK", clock)
        places = directory / name, runtime_directory / name
        machine = Machine(name, lake, ledger, *places, clock=clock, **{**settings, **more})
        made.append(machine)
        return machine

    try:
        yield make
    finally:
        for machine in made:
            machine.kill()
