"""The runtime directory as text, as a Path, and as any other os.PathLike."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import bridge.drain.control_socket
from bridge.errors import BridgeUnreachable
from brim import producer
from brim import subscribe as subscribe_shm
from brim.asyncio import consumer as async_consumer
from brim.asyncio import subscribe as async_subscribe_shm
from brim.asyncio import subscribe_zmq as async_subscribe_zmq
from edge.config.loader import load
from edge.config.schema import Config
from edge.local.protocol import Connection
from ringbuf.errors import InvalidTopic
from tests.support.brim_process import BrimProcess
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.usefixtures("wakeup_ends")

GROUP = "people"


class Place:
    """A path of another library."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


KINDS: list[Callable[[Path], str | os.PathLike[str]]] = [str, Path, Place]


async def test_every_local_function_takes_a_runtime_directory_as_text_or_path(broker: BrimProcess) -> None:
    for kind in KINDS:
        where = kind(broker.runtime_dir)
        Connection(where).close()
        async with asyncio.timeout(PATIENCE_S), async_subscribe_shm("a/#", runtime_dir=where) as memory:
            async with async_subscribe_zmq("a/#", runtime_dir=where):
                pass
            async with async_consumer(GROUP, "a/#", runtime_dir=where) as records:
                assert records.joined
            with producer("cam", runtime_dir=where) as writer:
                assert writer.publish(b"x", key="a/1") is not None
            assert [bytes(record) for record in await anext(memory)] == [b"x"]
        with subscribe_shm("a/#", runtime_dir=where) as blocking:
            assert blocking.connected
        assert bridge.drain.control_socket.names(where) == []
        with pytest.raises(BridgeUnreachable):
            bridge.drain.control_socket.state_of(where, "none")


async def test_a_producer_of_a_wildcard_topic_is_refused_where_it_publishes(broker: BrimProcess) -> None:
    with producer("cam", runtime_dir=broker.runtime_dir) as writer:
        for key in ("a/#", "+/b", ""):
            with pytest.raises(InvalidTopic, match="invalid topic"):
                writer.publish(b"x", key=key)
        assert writer.publish(b"x", key="a/b") == 0


def test_settings_take_text_for_directories(tmp_path: Path) -> None:
    config = Config(runtime_dir="/run/x", state_dir="/var/x")  # type: ignore[arg-type]
    assert (config.runtime_dir, config.state_dir) == (Path("/run/x"), Path("/var/x"))
    assert config.zmq_endpoint == "ipc:///run/x/zmq.sock"
    file = tmp_path / "brim.toml"
    file.write_text('edge_id = "here"\n')
    for kind in KINDS:
        assert load(kind(file)).edge_id == "here"
