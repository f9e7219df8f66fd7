"""A store that refuses credentials: the operator sees it, and the drain continues when they are valid."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from bridge.drain.bridge import Bridge
from edge.cli import main
from tests.support.bridges import commanded, publish, ring, settings
from tests.support.s3_server import Account, make_bucket, s3_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(it) for it in ("moto", "obstore")),
    reason="needs moto and obstore: pip install 'moto[s3,server]' 'brim[objects]'",
)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@contextmanager
def draining(runtime: Path, root: Path, options: dict[str, str]) -> Iterator[Bridge]:
    """To a bucket, with a socket for `brim bridge status`."""
    bridge = Bridge(settings(runtime, root, to="s3://lake/some", options=options))
    bridge.start()
    try:
        with commanded(bridge):
            yield bridge
    finally:
        assert bridge.stop(20)


def shown(runtime: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """`brim bridge status`: its exit status, and what it says."""
    capsys.readouterr()
    return main(["bridge", "status", "--runtime-dir", str(runtime)]), capsys.readouterr().out


def _has_failed(bridge: Bridge, *words: str) -> bool:
    state = bridge.state()
    return all(it in state.last_error for it in words) and state.failures >= 3


def test_credentials_that_a_store_refuses_are_said_until_they_are_put_right(
    runtime_directory: Path,
    tmp_path: Path,
    server: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An unknown key, a wrong secret, a key without rights, and one with some: each in the store's words."""
    make_bucket(server, "lake")
    account = Account(server)
    refused = {
        "InvalidAccessKeyId": account.options | {"access_key_id": "AKIAUNKNOWN"},
        "SignatureDoesNotMatch": account.options | {"secret_access_key": "sesame"},
    }
    with ring(runtime_directory) as made:
        publish(made, 10)
        for code, options in refused.items():
            with draining(runtime_directory, tmp_path, options) as bridge:
                wait_until(partial(_has_failed, bridge, code))
                status, said = shown(runtime_directory, capsys)
                assert status == 1
                assert "lake: retrying, 10 records behind" in said
                assert "s3://lake/some/: " in said
                assert f"403 Forbidden: {code}: The " in said
                assert "check the credentials of the bridge" in said
                assert "sesame" not in said
        with draining(runtime_directory, tmp_path, account.options) as bridge:
            for actions, what in ((["s3:No"], "list request"), (["s3:ListBucket"], ".lease")):
                account.allow(*actions)
                wait_until(partial(_has_failed, bridge, what, "AccessDenied"))
                assert "check the credentials of the bridge" in shown(runtime_directory, capsys)[1]
            account.allow("s3:*")
            publish(made, 10)
            wait_until(lambda: bridge.state().condition == "idle" and bridge.state().totals.records == 20)
            status, said = shown(runtime_directory, capsys)
            assert status == 0
            assert "403" not in said
    told = [it.message for it in caplog.records if it.message.startswith("bridge retrying")]
    assert len(told) == 4, "the same failure is logged once, however often it is tried"
