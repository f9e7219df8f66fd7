"""Live configuration: a running broker with clients at work applies changes, or none of them."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from brim.asyncio import connect
from edge.cli import main
from edge.cli.exit_status import Exit
from edge.client.errors import ConnectRefused
from edge.local.protocol import Connection, SettingList, Settings
from edge.mqtt import PubAck, Publish
from tests.support.brim_process import BrimProcess
from tests.support.drained_files import payloads_drained
from tests.support.mqtt_socket import SocketClient
from tests.support.ports import free_port
from tests.support.status_report import report_of
from tests.support.waiting import until, wait_until

AT_WORK = 50  # messages before and after a reload


class Desk:
    """A broker with a configuration file that tests change."""

    def __init__(self, broker: BrimProcess, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.broker, self.directory, self._capsys = broker, directory, capsys
        self.config = directory / "brim.toml"
        self._first = self.config.read_text()

    def write(self, settings: str) -> None:
        """The first configuration with more settings."""
        self.config.write_text(self._first + settings)

    def reload(self, settings: str) -> dict[str, Any]:
        """Result of `brim reload` after a change."""
        self.write(settings)
        status = main(["reload", "--json", "--runtime-dir", str(self.broker.runtime_dir)])
        out, error = self._capsys.readouterr()
        assert error == ""
        result: dict[str, Any] = json.loads(out)
        assert status == (Exit.INCOMPLETE if result["failed"] else 0)
        return result

    def request(self) -> dict[str, Any]:
        """The status report."""
        return report_of(self.broker.runtime_dir)

    def bridges(self) -> dict[str, str]:
        """Condition of each bridge."""
        return {bridge["name"]: bridge["condition"] for bridge in self.request()["bridges"]}

    def settings(self) -> dict[str, Any]:
        """The configuration in effect."""
        with Connection(self.broker.runtime_dir) as connection:
            return connection.request(Settings(), SettingList).settings


@pytest.fixture
def desk(runtime_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    with BrimProcess(runtime_directory, tmp_path, bridge=False) as broker:
        yield Desk(broker, tmp_path, capsys)


@asynccontextmanager
async def traffic(desk: Desk, count: list[int]) -> AsyncIterator[list[int]]:
    """A publisher and a subscriber of QoS 1 at work; yields the numbers received. At the end all have come,
    in order and once. `count` is the number of acknowledged messages.
    """
    url, ending, received = f"mqtt://127.0.0.1:{desk.broker.port}", asyncio.Event(), list[int]()

    async def publish() -> None:
        async with connect(url) as client:
            while not ending.is_set():
                await client.publish("plant/1", str(count[0]).encode(), qos=1)
                count[0] += 1

    async def receive() -> None:
        async with connect(url) as client, client.subscribe("plant/#", qos=1) as messages:
            subscribed.set()
            async for message in messages:
                received.append(int(message.payload))

    subscribed = asyncio.Event()
    receiving = asyncio.create_task(receive())
    await subscribed.wait()
    publishing = asyncio.create_task(publish())
    try:
        await until(lambda: count[0] > AT_WORK)
        yield received
        more = count[0] + AT_WORK
        await until(lambda: count[0] > more or publishing.done())
        ending.set()
        await publishing
        await until(lambda: len(received) >= count[0])
    finally:
        ending.set()
        publishing.cancel()
        receiving.cancel()
        await asyncio.gather(receiving, publishing, return_exceptions=True)
    assert received == list(range(count[0]))


async def test_limits_change_under_traffic(desk: Desk) -> None:
    async with traffic(desk, [0]):
        result = await asyncio.to_thread(
            desk.reload,
            "[limits]\nclient_id_max_bytes = 30\nconnections_max = 3\n[quota]\nshare_percent = 100\n",
        )
        assert result == {
            "applied": ["limits.client_id_max_bytes", "limits.connections_max", "quota.share_percent"],
            "failed": [],
            "needs_restart": [],
        }
        with pytest.raises(ConnectRefused):
            async with connect(f"mqtt://127.0.0.1:{desk.broker.port}", client_id="x" * 31):
                pass
        assert desk.settings()["limits"]["client_id_max_bytes"] == 30
        with SocketClient(desk.broker.port, "third"), pytest.raises((EOFError, ConnectionError)):
            SocketClient(desk.broker.port, "fourth")


async def test_bridges_are_added_changed_and_removed_under_traffic(desk: Desk) -> None:
    lake, other = desk.directory / "lake", desk.directory / "other"
    bridge = f'[[bridge]]\nname = "lake"\nto = "{lake.as_uri()}"\nlinger_ms = 10\n'
    second = f'[[bridge]]\nname = "other"\nto = "{other.as_uri()}"\nlinger_ms = 10\n'
    count = [0]
    async with traffic(desk, count):
        added = await asyncio.to_thread(desk.reload, bridge + second)
        assert (added["failed"], added["needs_restart"]) == ([], [])
        assert added["applied"] == ["bridge.lake", "bridge.other"]
        await until(lambda: lake.exists() and other.exists())
        changed = bridge.replace("= 10", "= 20")
        assert (await asyncio.to_thread(desk.reload, changed + second))["applied"] == [
            "bridge.lake.linger_ms"
        ]
        removed = await asyncio.to_thread(desk.reload, changed)
        assert removed["applied"] == ["bridge.other"]
        assert list(desk.bridges()) == ["lake"]
    wait_until(lambda: len(list(payloads_drained(lake))) >= count[0])
    assert sorted(map(int, payloads_drained(lake))) == list(range(count[0]))  # each once, over the change


async def test_a_mistake_in_any_file_leaves_everything_as_it_was(desk: Desk) -> None:
    before = desk.settings()
    async with traffic(desk, [0]):
        for settings, reason in (
            ("[limits]\nqueued_records_max = 0\n", "queued_records_max"),
            ("[limits]\nqueued_records_max = 7\n[[bridge]]\nname = 'b'\nto = 'gopher://x'\n", "gopher"),
            ("[limits]\nqueued_records_max = 7\npacket_max_bytes = 268435456\n", "packet_max_bytes"),
        ):
            result = await asyncio.to_thread(desk.reload, settings)
            assert result["applied"] == []
            assert reason in str(result["failed"])
        assert desk.settings() == before


async def test_a_bridge_that_cannot_start_leaves_the_earlier_one_running(desk: Desk) -> None:
    lake = desk.directory / "lake"
    bridge = f'[[bridge]]\nname = "lake"\nto = "{lake.as_uri()}"\nlinger_ms = 10\n'
    count = [0]
    async with traffic(desk, count):
        await asyncio.to_thread(desk.reload, bridge)
        await until(lake.exists)
        elsewhere = bridge.replace("/lake", "/elsewhere")
        result = await asyncio.to_thread(desk.reload, elsewhere + "[limits]\ntopics_max = 7777\n")
        assert result["applied"] == ["limits.topics_max"]
        assert result["needs_restart"] == ["bridge.lake.to"]
        assert "the earlier bridge continues" in result["failed"][0]
        assert desk.settings()["bridge"][0]["to"] == lake.as_uri()
    wait_until(lambda: len(list(payloads_drained(lake))) >= count[0])
    assert not (desk.directory / "elsewhere").exists()


def test_a_bridge_with_only_another_password_is_named_by_reload_and_audit_without_the_password(
    desk: Desk,
) -> None:
    bridge = f'[[bridge]]\nname = "up"\nto = "mqtt://edge:PASSWORD@127.0.0.1:{free_port()}"\n'
    assert desk.reload(bridge.replace("PASSWORD", "0ld-w0rd"))["applied"] == ["bridge.up"]
    result = desk.reload(bridge.replace("PASSWORD", "n3w-w0rd"))
    assert result == {"applied": ["bridge.up.to"], "failed": [], "needs_restart": []}
    text = desk.broker.log_until("setting changed name=bridge.up.to before=(hidden) now=(hidden)")
    assert "w0rd" not in text
    assert desk.reload(bridge.replace("PASSWORD", "n3w-w0rd"))["applied"] == []


SCHEMA = '[[payload]]\ntopic = "#"\nformat = "json"\nfields = { FIELDS }\n'


async def test_a_changed_payload_schema_is_applied_under_traffic_unless_readers_could_not_join_its_columns(
    desk: Desk,
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: pip install 'brim[spark]'")
    lake, schema = desk.directory / "lake", desk.directory / "payloads.toml"
    setting = "bridge.lake.options.payloads"
    bridge = (
        f'[[bridge]]\nname = "lake"\nto = "{lake.as_uri()}"\nlinger_ms = 10\n'
        f'options = {{ format = "parquet", payloads = "{schema}" }}\n'
    )

    def column_sets() -> set[tuple[str, ...]]:
        schemas = (parquet.read_schema(path).names for path in lake.rglob("[0-9]*.parquet"))
        return {tuple(name for name in names if name in {"a", "b", "_rescued"}) for names in schemas}

    async def reloaded(fields: str) -> dict[str, Any]:
        schema.write_text(SCHEMA.replace("FIELDS", fields))
        return await asyncio.to_thread(desk.reload, bridge)

    count = [0]
    async with traffic(desk, count):
        assert (await reloaded('a = "long"'))["applied"] == ["bridge.lake"]
        await until(lambda: column_sets() == {("a", "_rescued")})
        assert (await reloaded('a = "long"')) == {"applied": [], "failed": [], "needs_restart": []}
        assert (await reloaded('a = "double", b = "string"'))["applied"] == [setting]
        await until(lambda: ("a", "b", "_rescued") in column_sets())
        for wrong, reason in (
            ('a = "string"', "column a of the payload schema is string, and double"),
            ('A = "double"', "SQL ignores case"),
            ('a = "doubt"', "must be a type"),
        ):
            result = await reloaded(wrong)
            assert result["applied"] == []
            assert reason in str(result["failed"])
        await until(lambda: desk.bridges()["lake"] in {"idle", "draining"})
    wait_until(
        lambda: sum(parquet.read_metadata(path).num_rows for path in lake.rglob("[0-9]*.parquet")) >= count[0]
    )
    payloads = [
        int(payload.as_py())
        for path in lake.rglob("[0-9]*.parquet")
        for payload in parquet.read_table(path, columns=["payload"])["payload"]
    ]
    assert sorted(payloads) == list(range(count[0]))  # each once, over the changes
    wait_until(
        lambda: desk.request()["bridges"][0]["totals"]["rescued_records"] > 0
    )  # a bare number is no map


@pytest.mark.parametrize("good_reads", [2, 3])  # of those that check it, and then of those that start it
async def test_a_payload_schema_that_changes_between_its_check_and_its_use_leaves_the_earlier_bridge(
    desk: Desk, good_reads: int
) -> None:
    """The file is a FIFO: each read gets the next content."""
    pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'brim[spark]'")
    lake, schema = desk.directory / "lake", desk.directory / "payloads.toml"
    bridge = (
        f'[[bridge]]\nname = "lake"\nto = "{lake.as_uri()}"\nlinger_ms = 10\n'
        f'options = {{ format = "parquet", payloads = "{schema}" }}\n'
    )
    first, second = (SCHEMA.replace("FIELDS", f'{name} = "long"') for name in "ab")
    schema.write_text(first)
    assert (await asyncio.to_thread(desk.reload, bridge))["failed"] == []
    schema.unlink()
    os.mkfifo(schema)

    descriptors = Path(f"/proc/{desk.broker.pid}/fd")

    def is_schema(descriptor: Path) -> bool:
        with suppress(FileNotFoundError):  # closed meanwhile
            return os.readlink(descriptor) == str(schema)
        return False

    def is_read() -> bool:
        return any(map(is_schema, descriptors.iterdir()))

    def feed() -> None:
        for content in [second] * good_reads + ["garbage", first]:
            with schema.open("w") as file:
                wait_until(is_read)
                file.write(content)
            wait_until(lambda: not is_read())

    feeding = asyncio.create_task(asyncio.to_thread(feed))
    result = await asyncio.to_thread(desk.reload, bridge)
    await feeding
    assert result["applied"] == []
    assert "the earlier bridge continues" in result["failed"][0]
    await until(lambda: desk.bridges() == {"lake": "idle"})


async def test_settings_that_need_a_restart_are_named_and_the_others_applied(desk: Desk) -> None:
    async with traffic(desk, [0]):
        result = await asyncio.to_thread(
            desk.reload, "[limits]\nqos_max = 1\nkeep_alive_max_s = 60\n[log]\nworkers = 2\n"
        )
        assert result["applied"] == ["limits.keep_alive_max_s"]
        assert result["needs_restart"] == ["limits.qos_max", "log.workers"]
        assert desk.settings()["limits"]["qos_max"] == 2


def test_a_hangup_changes_the_level_of_the_log(runtime_directory: Path, tmp_path: Path) -> None:
    broker = BrimProcess(runtime_directory, tmp_path, bridge=False, log_level=None)
    with broker:
        config = tmp_path / "brim.toml"
        text = config.read_text()
        config.write_text('log_level = "error"\n' + text)
        assert main(["reload", "--runtime-dir", str(runtime_directory)]) == 0
        with SocketClient(broker.port, "unseen"):
            config.write_text('log_level = "info"\n' + text)
            os.kill(broker.pid, signal.SIGHUP)
            broker.log_until("setting changed name=log_level before=error")
        with SocketClient(broker.port, "seen"):
            assert "client=unseen" not in broker.log_until("client connected client=seen").split("ended")[0]


def test_publishers_do_not_wait_for_a_bridge_that_was_removed(
    runtime_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dead = f'[[bridge]]\nname = "dead"\nto = "mqtt://127.0.0.1:{free_port()}"\n'
    stream = '[[stream]]\nname = "plant"\ntopics = ["plant/#"]\ndurability = "upstream"\n'
    with BrimProcess(runtime_directory, tmp_path, stream) as broker:  # with a bridge to a directory
        desk = Desk(broker, tmp_path, capsys)
        assert desk.reload(dead)["failed"] == []
        with SocketClient(broker.port, "waits") as client:
            client.send(Publish("plant/1", b"x", 1, packet_id=1))
            wait_until(lambda: list(payloads_drained(broker.sink)) == [b"x"])
            assert client.next(0.2) is None
            assert desk.reload("")["failed"] == []
            assert isinstance(client.receive(), PubAck)
