"""Rings of default sizes in a small /dev/shm, as containers have it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import edge.client
from brim import producer
from edge.config.limits import DefaultSize
from edge.config.loader import parse
from edge.config.schema import Config, Stream
from edge.streams.ring_sizes import fitted, fitting_bytes
from ringbuf.constants import HEADER_BYTES
from ringbuf.ring import ring_file
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild
from tests.support.small_disk import small_disk

pytestmark = pytest.mark.usefixtures("wakeup_ends")

MIB = 1 << 20


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """64 MiB, Docker's default."""
    with small_disk(tmp_path / "shm", 64 * MIB) as place:
        yield place


def ring_bytes(memory: Path, name: str = "default-0") -> int:
    return ring_file(memory / "brim" / name).stat().st_size - HEADER_BYTES


async def serves(brim: BrimProcess) -> None:
    async with (
        edge.client.connect(f"mqtt://127.0.0.1:{brim.port}") as client,
        client.subscribe("a", qos=1) as messages,
    ):
        for _ in range(30):  # more than the ring holds
            await client.publish("a", bytes(2 * MIB), qos=1)
            assert len((await anext(messages)).payload) == 2 * MIB


async def test_a_broker_without_a_configuration_fits_into_64_mib(memory: Path, tmp_path: Path) -> None:
    brim = BrimProcess(memory / "brim", tmp_path, bridge=False)
    with brim:
        assert ring_bytes(memory) == 32 * MIB
        await serves(brim)
        with producer("cam", runtime_dir=memory / "brim") as writer:
            assert writer.publish(b"x" * 1000, key="frames/1") == 0
        log = brim.stop()
        assert "ring size lowered to fit stream=default ring_bytes=33554432 default=67108864" in log
        assert "--shm-size" in log
        brim.start()  # The ring that is there keeps its size, without a word about another.
        await serves(brim)
        log = brim.stop()
    assert "ring keeps its size" not in log
    assert ring_bytes(memory) == 32 * MIB


def test_a_configured_size_is_not_lowered(memory: Path, tmp_path: Path) -> None:
    file = tmp_path / "brim.toml"
    file.write_text('[[stream]]\nname = "default"\ntopics = ["#"]\nring_bytes = "64 MiB"\n')
    words = ("run", "--port", 0, "--config", file, "--runtime-dir", memory / "brim", "--state-dir", tmp_path)
    with ModuleChild("edge", *words) as child:
        status, _, error = child.wait()
    assert status == 2, error
    assert "ring default-0 of 67108864 bytes cannot be created" in error
    assert "--shm-size" in error


async def test_partitions_share_the_room(memory: Path, tmp_path: Path) -> None:
    settings = "[[stream]]\nname = 'a'\ntopics = ['a/#']\npartitions = 4\n"
    settings += "[[stream]]\nname = 'b'\ntopics = ['b/#']\nring_bytes = '8 MiB'\n"
    with BrimProcess(memory / "brim", tmp_path, settings, bridge=False):
        assert ring_bytes(memory, "b-0") == 8 * MIB
        assert {ring_bytes(memory, name) for name in ("default-0", "a-0", "a-3")} == {4 * MIB}


def config_in(directory: Path, **changes: object) -> Config:
    return msgspec.structs.replace(Config(), runtime_dir=directory, **changes)


def test_sizes_stay_where_there_is_room(runtime_directory: Path) -> None:
    config = config_in(runtime_directory)
    assert fitted(config, sys.maxsize) is not None
    assert fitted(config, sys.maxsize).stream == config.stream
    assert isinstance(parse("").stream[0].ring_bytes, DefaultSize)
    written = parse('[[stream]]\nname="a"\ntopics=["a"]\nring_bytes=67108864').stream[0].ring_bytes
    assert not isinstance(written, DefaultSize)


def test_a_size_is_not_lowered_below_what_the_rules_need(tmp_path: Path) -> None:
    text = "[limits]\npacket_max_bytes = '2 MiB'\n"
    with small_disk(tmp_path / "tiny", 4 * MIB) as memory:
        assert fitted(config_in(memory), sys.maxsize).stream[0].ring_bytes == MIB
        config = msgspec.structs.replace(parse(text), runtime_dir=memory)
        assert fitted(config, sys.maxsize).stream[0].ring_bytes == 16 * MIB
        assert fitting_bytes(memory, 64 * MIB) == MIB
        named = Stream(name="a", topics=("a",), ring_bytes=64 * MIB)
        assert fitted(config_in(memory, stream=(named, *Config().stream)), sys.maxsize).stream[0] == named
