"""Leases: of two bridges that would drain one edge into one place, one does."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from bridge.errors import SinkUnavailable
from bridge.sinks.lease import LEASE_S, RENEW_S, Lease, this_machine

obstore = pytest.importorskip("obstore", reason="needs obstore: pip install 'brim[objects]'")
pytest.importorskip("moto", reason="needs moto: pip install 'moto[s3,server]'")

from tests.support import azure_server  # noqa: E402
from tests.support.s3_server import make_bucket, options, s3_server  # noqa: E402


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(params=["s3", "azure", "memory"])
def store(request: pytest.FixtureRequest, server: str) -> Iterator[Any]:
    """One store, which every bridge of a test looks at."""
    if request.param == "azure":
        if azure_server.NEEDS_AZURITE:
            pytest.skip(azure_server.NEEDS_AZURITE)
        directory = request.getfixturevalue("tmp_path_factory").mktemp("azure")
        with azure_server.azure_server(directory) as url:
            azure_server.make_container(url, "lake")
            client = {"allow_http": True, "pool_max_idle_per_host": "0"}
            yield obstore.store.AzureStore("lake", client_options=client, **azure_server.options(url))
        return
    if request.param == "memory":
        yield obstore.store.MemoryStore()
        return
    bucket = f"lake-{abs(hash(request.node.name))}"
    make_bucket(server, bucket)
    client = {"allow_http": True}
    yield obstore.store.S3Store(bucket, client_options=client, **options(server))


@pytest.fixture
def machines(store: Any) -> Iterator[Any]:
    """lease(holder, clock): one on each machine; given up at the end."""
    made: list[Lease] = []

    def lease(holder: str, clock: Clock, where: str = "test://lake") -> Lease:
        made.append(Lease(store, where, "edge-1", holder, clock))
        return made[-1]

    yield lease
    for one in made:
        one.give_up()


def test_the_second_machine_is_refused_as_long_as_the_first_renews(machines: Any) -> None:
    one, two = Clock(), Clock()
    first, second = machines("one", one), machines("two", two)
    first.take()
    for _ in range(5):
        one.now += RENEW_S
        two.now += RENEW_S
        first.keep()
        with pytest.raises(SinkUnavailable, match="drains this edge there: one; this one is two") as caught:
            second.take()
        assert f"takes over in {LEASE_S:.0f} s" in caught.value.hint


def test_a_machine_that_is_dead_is_followed_after_a_while_and_finds_out_if_it_is_not(machines: Any) -> None:
    one, two = Clock(), Clock()
    first, second = machines("one", one), machines("two", two)
    first.take()
    with pytest.raises(SinkUnavailable):
        second.take()
    two.now += LEASE_S - 1
    with pytest.raises(SinkUnavailable, match="one"):
        second.take()
    two.now += 2
    second.take()
    second.keep()
    one.now += RENEW_S + 1
    with pytest.raises(SinkUnavailable, match="has taken over"):
        first.keep()
    with pytest.raises(SinkUnavailable, match="drains this edge there: two; this one is one"):
        first.keep()


def test_a_lease_that_was_given_up_is_free(machines: Any) -> None:
    first, second = machines("one", Clock()), machines("two", Clock())
    first.take()
    first.give_up()
    second.take()
    with pytest.raises(SinkUnavailable, match="two"):
        first.take()


def test_a_bridge_that_was_killed_goes_on_at_once(store: Any) -> None:
    killed = Lease(store, "test://before", "edge-1", "one", Clock())
    killed.take()
    again = Lease(store, "test://after", "edge-1", "one", Clock())  # another name: the kernel has dropped it
    again.take()
    again.keep()
    again.give_up()
    killed.give_up()


def test_two_bridges_of_one_machine_are_told_apart(machines: Any) -> None:
    first, second = machines("one", Clock()), machines("one", Clock())
    first.take()
    first.take()
    with pytest.raises(SinkUnavailable, match="another bridge of this machine"):
        second.take()
    first.give_up()
    second.take()


def test_a_lease_that_cannot_be_read_is_somebody_s(store: Any, machines: Any) -> None:
    obstore.put(store, "edge=edge-1/.lease", b"what is this")
    with pytest.raises(SinkUnavailable, match="an unknown holder"):
        machines("one", Clock()).take()


def test_an_answer_of_another_server_is_no_lease(machines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A portal or a proxy answers each request with a page, and knows no versions."""
    lease = machines("one", Clock())

    class Page:
        meta: ClassVar[dict[str, None]] = {"e_tag": None}

        def bytes(self) -> bytes:
            return b"<html>sign in</html>"

    with monkeypatch.context() as patched:
        patched.setattr(obstore, "get", lambda *_: Page())
        with pytest.raises(SinkUnavailable, match="no version") as caught:
            lease.take()
    assert "portal" in caught.value.hint
    lease.take()


def test_a_store_without_conditions_has_no_leases(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    local = obstore.store.LocalStore(tmp_path, mkdir=True)
    for _ in range(2):
        lease = Lease(local, "test://local", "edge-1", "one", Clock())
        lease.take()
        lease.keep()
        lease.give_up()
    assert "lease not taken" in caplog.text


def test_a_machine_s_name_is_the_same_each_time_and_names_its_host() -> None:
    import socket

    assert this_machine() == this_machine()
    assert this_machine().startswith(socket.gethostname())
