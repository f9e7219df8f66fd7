"""Times that no wait can have are refused by each form, before it waits."""

from contextlib import closing

import pytest

import brim
import brim.asyncio
from brim.errors import InvalidArgument
from tests.support.brim_process import BrimProcess

IMPOSSIBLE = pytest.mark.parametrize("timeout_s", [float("nan"), -1.0])
ENDPOINT = "tcp://127.0.0.1:9"  # connects late, and is never used


@IMPOSSIBLE
def test_a_read_with_an_impossible_timeout_is_refused(timeout_s: float) -> None:
    frames = brim.subscribe_zmq("#", endpoint=ENDPOINT)
    with closing(frames), closing(brim.subscribe("#")) as records:
        for reads in (records, frames, brim.consumer("g", "#"), brim.reader("#")):
            with pytest.raises(InvalidArgument, match="invalid timeout_s"):
                reads.read(timeout_s)


@IMPOSSIBLE
async def test_a_read_of_asyncio_with_an_impossible_timeout_is_refused(timeout_s: float) -> None:
    records = brim.asyncio.subscribe("#")
    frames = brim.asyncio.subscribe_zmq("#", endpoint=ENDPOINT)
    try:
        for reads in (records, frames, brim.asyncio.consumer("g", "#"), brim.asyncio.reader("#")):
            with pytest.raises(InvalidArgument, match="invalid timeout_s"):
                await reads.read(timeout_s)
    finally:
        await records.close()
        await frames.close()


@IMPOSSIBLE
def test_a_client_refuses_an_impossible_timeout(broker: BrimProcess, timeout_s: float) -> None:
    with brim.connect(f"mqtt://127.0.0.1:{broker.port}") as client:
        with pytest.raises(InvalidArgument, match="invalid timeout_s"):
            client.publish("a", b"", 1, timeout_s=timeout_s)
        with client.subscribe("a") as messages, pytest.raises(InvalidArgument, match="invalid timeout_s"):
            messages.read(timeout_s)


@IMPOSSIBLE
def test_a_connection_refuses_an_impossible_timeout(timeout_s: float) -> None:
    for make in (brim.connect, brim.asyncio.connect):
        with pytest.raises(InvalidArgument, match="connect_timeout_s"):
            make("mqtt://127.0.0.1:9", connect_timeout_s=timeout_s)
    for module in (brim, brim.asyncio):
        with pytest.raises(InvalidArgument, match="connect_timeout_s"):
            module.consumer("g", "#", connect_timeout_s=timeout_s)
        with pytest.raises(InvalidArgument, match="connect_timeout_s"):
            module.reader("#", connect_timeout_s=timeout_s)
