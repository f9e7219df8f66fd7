"""What tests of the bridge share."""

import importlib.util

import pytest


@pytest.fixture(scope="session", autouse=True)
def obstore_runtime() -> None:
    """obstore's threads and their descriptors stay for the life of the process: they are there already."""
    if importlib.util.find_spec("obstore"):
        import obstore

        obstore.put(obstore.store.MemoryStore(), "name", b"")
