"""Sinks: a file is there once and whole, or the error says what to do."""

import dataclasses
import errno
import importlib.util
import mmap
import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from bridge.errors import BadName, SinkConflict, SinkUnavailable
from bridge.format.file_builder import DrainedFile
from bridge.format.installation import Holder
from bridge.sinks.directory import DIRECT_MIN_BYTES, PARTIAL, DirectorySink
from bridge.sinks.interface import FileSink, MergingStore
from bridge.sinks.registry import open_file_sink, open_sink
from tests.support import azure_server
from tests.support.drained_files import drained_file_of, store
from tests.support.s3_server import make_bucket, options, s3_server
from tests.support.small_disk import small_disk, take_inodes

Stored = Callable[[str], bytes]
NEEDS_OBSTORE = "needs obstore: pip install 'brim[objects]'"
needs_obstore = pytest.mark.skipif(not importlib.util.find_spec("obstore"), reason=NEEDS_OBSTORE)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """An S3 server; "": this machine has none."""
    if not importlib.util.find_spec("moto") or not importlib.util.find_spec("obstore"):
        yield ""
        return
    with s3_server() as url:
        yield url


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An Azure Blob server; "": this machine has none."""
    if azure_server.NEEDS_AZURITE or not importlib.util.find_spec("obstore"):
        yield ""
        return
    with azure_server.azure_server(tmp_path_factory.mktemp("azure")) as url:
        yield url


@pytest.fixture(params=["directory", "objects", "memory", "s3", "azure"])
def sink(
    request: pytest.FixtureRequest, tmp_path: Path, server: str, azure: str
) -> Iterator[tuple[FileSink, Stored]]:
    """A sink, and how to look at what it holds from outside."""
    root = tmp_path / "lake"
    if request.param == "directory":
        made: FileSink = open_file_sink(root.as_uri())
        yield made, lambda name: (root / name).read_bytes()
    else:
        obstore = pytest.importorskip("obstore", reason=NEEDS_OBSTORE)
        from bridge.sinks.object_store import ObjectSink

        if request.param == "s3":
            if not server:
                pytest.skip("needs moto: pip install 'moto[s3,server]'")
            bucket = f"lake-{abs(hash(request.node.name))}"
            make_bucket(server, bucket)
            made = open_file_sink(f"s3://{bucket}/some/prefix", options(server))
            client = {"allow_http": True}
            lake = obstore.store.S3Store(
                bucket, prefix="some/prefix", client_options=client, **options(server)
            )
            yield made, lambda name: bytes(obstore.get(lake, name).bytes())
            made.close()
            return
        if request.param == "azure":
            if not azure:
                pytest.skip(azure_server.NEEDS_AZURITE)
            container = f"lake-{abs(hash(request.node.name))}"
            azure_server.make_container(azure, container)
            at = azure_server.options(azure)
            idle: dict[str, str] = {"pool_max_idle_per_host": "0"}  # Azurite keeps connections open
            made = open_file_sink(f"az://{container}/some/prefix", at | idle)
            blobs = obstore.store.AzureStore(
                container, prefix="some/prefix", client_options={"allow_http": True, **idle}, **at
            )
            yield made, lambda name: bytes(obstore.get(blobs, name).bytes())
            made.close()
            return
        local = request.param == "objects"
        store = obstore.store.LocalStore(root, mkdir=True) if local else obstore.store.MemoryStore()
        made = ObjectSink(store, "test://lake")
        yield made, lambda name: bytes(obstore.get(store, name).bytes())
    made.close()


def content(file: DrainedFile) -> bytes:
    return b"".join(file.parts)


def test_what_was_put_is_there_under_its_name(sink: tuple[FileSink, Stored]) -> None:
    made, stored = sink
    files = [drained_file_of(0, 9), drained_file_of(10, 10, drain_seq=2, stream="cam@gate")]
    for file in files:
        made.put(file)
    assert [stored(file.name) for file in files] == [content(file) for file in files]
    assert sorted(made.names("edge=edge-1/")) == sorted(file.name for file in files)
    assert sorted(made.names("edge=edge-1/dt=2023-11-14/")) == sorted(file.name for file in files)
    assert list(made.names("edge=edge-2/")) == []
    made.begin("edge-1")


def test_a_file_that_is_put_again_is_there_once(sink: tuple[FileSink, Stored]) -> None:
    made, stored = sink
    for _ in range(3):
        made.put(drained_file_of(0, 9))
    assert list(made.names("edge=edge-1/")) == [drained_file_of(0, 9).name]
    assert stored(drained_file_of(0, 9).name) == content(drained_file_of(0, 9))


def test_a_name_that_is_taken_by_other_content_is_an_error_and_stays_as_it_was(
    sink: tuple[FileSink, Stored],
) -> None:
    made, stored = sink
    made.put(drained_file_of(0, 9))
    longer = drained_file_of(0, 9, payload=lambda offset: b"another life %d" % offset)
    same_length = drained_file_of(0, 9, payload=lambda offset: str(9 - offset).encode())
    for other in (longer, same_length):
        with pytest.raises(SinkConflict, match=r"is there already, with other content") as caught:
            made.put(other)
        assert "edge_id" in caught.value.hint
    assert stored(drained_file_of(0, 9).name) == content(drained_file_of(0, 9))


def test_a_file_of_more_parts_than_one_writev_takes_is_whole(sink: tuple[FileSink, Stored]) -> None:
    from bridge.format.file_builder import build
    from bridge.format.write_intent import WriteIntent
    from ringbuf import FLAG_UNCHECKED
    from tests.support.drained_files import CREATED_NS, EPOCH, batch_of, record

    made, stored = sink
    batch = batch_of(record(offset, b"alone", flags=FLAG_UNCHECKED) for offset in range(1500))
    file = build("edge-1", WriteIntent(1, CREATED_NS, "s", 0, EPOCH, 0, None, 0, 1499, (), ()), batch)
    assert len(file.parts) > 1024
    made.put(file)
    assert stored(file.name) == content(file)


@pytest.mark.parametrize("begin", [0, 1], ids=["whole pages", "between pages"])
@pytest.mark.parametrize("length", [DIRECT_MIN_BYTES, DIRECT_MIN_BYTES + 32, 3_000_000])
def test_a_long_piece_is_whole_wherever_it_lies_in_memory(tmp_path: Path, begin: int, length: int) -> None:
    """Past the page cache, where this file system does that, and where it does not."""
    memory = mmap.mmap(-1, begin + length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[begin:] = random.Random(length).randbytes(length)
    whole = drained_file_of(0, 9)
    file = dataclasses.replace(whole, parts=(memoryview(memory)[begin:], whole.tail))
    made = open_file_sink((tmp_path / "lake").as_uri())
    made.put(file)
    made.put(file)
    made.close()
    assert (tmp_path / "lake" / file.name).read_bytes() == content(file)


@pytest.mark.parametrize(
    "url", ["file://elsewhere/lake", "file:relative", "ftp://host/lake", "lake", "nats://b:4222"]
)
def test_a_url_without_a_sink_is_refused(url: str) -> None:
    with pytest.raises(BadName) as caught:
        open_sink(url)
    assert caught.value.hint


@needs_obstore
def test_an_option_that_the_store_does_not_know_is_refused() -> None:
    with pytest.raises(BadName, match="regoin"):
        open_sink("s3://bucket/prefix", {"regoin": "eu-west-1"})
    with pytest.raises(BadName, match="takes no options"):
        open_sink("file:///srv/lake", {"region": "eu-west-1"})


@needs_obstore
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("allow_http", "true"),
        ("timeout", "1min"),
        ("connect_timeout", "2s"),
        ("proxy_url", "http://127.0.0.1:1"),
        ("skip_signature", "true"),
        ("virtual_hosted_style_request", "false"),
    ],
)
def test_options_of_the_store_and_of_its_http_client_are_taken_as_text(option: str, value: str) -> None:
    pytest.importorskip("obstore", reason="needs obstore: pip install 'brim[objects]'")
    open_sink("s3://lake/plant", {"region": "eu-central-1", option: value}).close()


@pytest.mark.parametrize(
    ("option", "value"), [("allow_http", "perhaps"), ("timeout", "soon"), ("skip_signature", "perhaps")]
)
def test_a_value_that_an_option_cannot_have_is_refused(option: str, value: str) -> None:
    pytest.importorskip("obstore", reason="needs obstore: pip install 'brim[objects]'")
    with pytest.raises(BadName, match=value):
        open_sink("s3://lake/plant", {"region": "eu-central-1", option: value})


def test_a_store_that_cannot_be_reached_is_unavailable_and_names_no_secret() -> None:
    made = open_file_sink(
        "s3://bucket/prefix",
        {
            "region": "eu-west-1",
            "endpoint": "http://127.0.0.1:1",
            "access_key_id": "who",
            "secret_access_key": "sesame",
        },
    )
    for call in (
        lambda: made.put(drained_file_of(0, 1)),
        lambda: made.begin("edge-1"),
        lambda: list(made.names("edge=edge-1/")),
    ):
        with pytest.raises(SinkUnavailable) as caught:
            call()
        assert "endpoint" in caught.value.hint
        assert "sesame" not in str(caught.value)
    assert made.url == "s3://bucket/prefix"
    made.close()


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("mqtt://who:sesame@host:1883", {"qos": "2"}),
        ("mqtt://who:sesame@host:1883", {"in_flight": "none"}),
        ("mqtt://who:sesame@host:1883", {"commands": "cmd/#"}),
        ("mqtt://who:sesame@host:1883", {"commands": "a/#/b", "local": "mqtt://127.0.0.1"}),
        ("mqtt://host:1883", {"commands": "cmd/#", "local": "http://who:sesame@127.0.0.1"}),
        ("kafka://who:sesame@host:9092/topic", {}),
        ("kafka://who:sesame@host:9092/topic", {"mode": "chunk"}),
        ("kafka://who:sesame@host:9092/topic", {"acks": "1"}),
        ("s3://who:sesame@bucket/lake", {"regoin": "eu-west-1"}),
        ("s3://who:sesame@bucket/lake", {"format": "orc"}),
        ("file://who:sesame@host/lake", {}),
        ("amqp://who:sesame@host", {}),
    ],
)
def test_what_is_said_of_a_url_that_cannot_be_used_names_no_secret(url: str, options: dict[str, str]) -> None:
    with pytest.raises((BadName, SinkUnavailable)) as caught:
        open_sink(url, options)
    assert "sesame" not in f"{caught.value} {caught.value.hint}"


@pytest.fixture(params=["directory", "memory"])
def bridges(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[MergingStore]]:
    """The stores of two bridges with the same place."""
    if request.param == "directory":
        made: list[MergingStore] = [DirectorySink(tmp_path), DirectorySink(tmp_path)]
    else:
        obstore = pytest.importorskip("obstore", reason=NEEDS_OBSTORE)
        from bridge.sinks.object_store import ObjectSink

        store, objects = obstore.store.MemoryStore(), []
        for number in "12":
            objects.append(ObjectSink(store, f"test://{tmp_path}"))
            objects[-1].hold_as(Holder(number * 32, f"boot-{number}", f"a.{number}", "gateway"))
        made = [*objects]
    yield made
    for one in made:
        one.close()


@pytest.mark.parametrize("change", ["probe", "publish", "remove"])
def test_a_bridge_that_does_not_hold_the_edge_changes_no_name(
    bridges: list[MergingStore], change: str
) -> None:
    holder, other = bridges
    file = drained_file_of(0, 9)
    holder.begin("edge-1")
    holder.put(file)
    changes: dict[str, Callable[[MergingStore], object]] = {
        "probe": lambda store: store.probe("edge-1"),
        "publish": lambda store: store.publish(file.name, drained_file_of(0, 9, drain_seq=2).name),
        "remove": lambda store: store.remove([file.name]),
    }
    with pytest.raises(SinkUnavailable, match="another bridge drains this edge"):
        changes[change](other)
    assert list(holder.names("edge=edge-1/")) == [file.name]
    changes[change](holder)  # which may


# ---- the directory sink alone ----


def test_files_are_for_owner_and_group_only_and_nothing_else_is_left(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        store(tmp_path / "lake", drained_file_of(0, 9))
    finally:
        os.umask(mask)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "lake").rglob("*") if path.is_dir()}
    files = [path for path in (tmp_path / "lake").rglob("*") if path.is_file()]
    assert modes == {0o750}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o640}
    assert sorted(path.name for path in files) == [".lock", Path(drained_file_of(0, 9).name).name]


def half_written(root: Path, file: DrainedFile) -> Path:
    """As a kill leaves it."""
    path = root / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.parents[1] / f"{PARTIAL}{path.name}"
    partial.write_bytes(content(file)[:100])
    return partial


def test_what_a_kill_has_left_half_written_is_no_file_and_is_written_over(tmp_path: Path) -> None:
    file = drained_file_of(0, 9)
    partial, path = half_written(tmp_path, file), tmp_path / file.name
    assert list(DirectorySink(tmp_path).names("edge=edge-1/")) == []
    store(tmp_path, file)
    assert [found.name for found in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == content(file)
    assert not partial.exists()


def test_the_next_drain_of_an_edge_removes_what_a_kill_has_left_half_written_there(tmp_path: Path) -> None:
    left, others = half_written(tmp_path, drained_file_of(0, 9)), tmp_path / "edge=edge-2" / f"{PARTIAL}x"
    others.parent.mkdir()
    others.write_text("")
    sink = DirectorySink(tmp_path)
    sink.begin("edge-1")
    assert not left.exists()
    assert others.exists()
    left.write_text("")  # of a put that is under way, when a drain that has failed begins again
    sink.begin("edge-1")
    assert left.exists()
    sink.close()


def test_a_file_that_the_disk_has_no_room_for_leaves_its_room_to_others(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 << 10) as disk:
        sink = DirectorySink(disk / "lake")
        with pytest.raises(SinkUnavailable, match="No space left"):
            sink.put(drained_file_of(0, 3, payload=lambda _: bytes(32 << 10)))
        sink.put(drained_file_of(4, 5, drain_seq=2))
        assert [path.name for path in sink.root.glob("edge=*/.*")] == [".lock"]
        sink.close()


def test_a_disk_without_free_inodes_has_a_remedy_of_its_own(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20, inodes=20) as disk:
        sink = DirectorySink(disk / "lake")
        sink.put(drained_file_of(0, 3))
        files = take_inodes(disk)
        with pytest.raises(SinkUnavailable, match="No space left") as caught:
            sink.put(drained_file_of(4, 5, drain_seq=2))
        assert "no free inodes" in caught.value.hint
        for file in files:
            file.unlink()
        sink.put(drained_file_of(4, 5, drain_seq=2))
        sink.close()


def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_before_put_returns(tmp_path: Path) -> None:
    """The order of the system calls themselves, as the kernel saw them."""
    strace = shutil.which("strace")
    if not strace:
        pytest.skip("needs strace: apt-get install strace")
    code = (
        "import sys\nfrom pathlib import Path\nfrom bridge.sinks.directory import DirectorySink\n"
        "from tests.support.drained_files import drained_file_of\n"
        "DirectorySink(Path(sys.argv[1])).put(drained_file_of(0, 9))"
    )
    trace = tmp_path / "trace"
    calls = "mkdir,writev,fdatasync,fsync,link,linkat,unlink"
    command = [strace, "-f", "-qq", "-y", "-e", f"trace={calls}", "-o", str(trace)]
    command += [sys.executable, "-c", code, str(tmp_path / "lake")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "ptrace" in done.stderr or "PTRACE" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    steps = [line.split(maxsplit=1)[1] for line in trace.read_text().splitlines() if str(tmp_path) in line]
    kinds = [step.partition("(")[0] for step in steps]
    link = kinds.index("linkat" if "linkat" in kinds else "link")
    assert kinds[link - 2 : link] == ["writev", "fdatasync"]
    assert PARTIAL in steps[link - 1]
    day = steps[-1].partition("<")[2].partition(">")[0]
    assert kinds[link + 1 :][-1] == "fsync"
    assert day.endswith("dt=2023-11-14")
    for made in (index for index, kind in enumerate(kinds) if kind == "mkdir"):
        assert kinds[made + 1] == "fsync"


def test_a_directory_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root, remedy in (
        (tmp_path / "file" / "lake", "directory"),
        (tmp_path / "missing" / "lake", "mount or make"),
    ):
        sink = DirectorySink(root)
        with pytest.raises(SinkUnavailable) as caught:
            sink.put(drained_file_of(0, 1))
        assert remedy in caught.value.hint
        with pytest.raises(SinkUnavailable):
            sink.begin("edge-1")


def test_a_directory_that_is_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    sink = DirectorySink(tmp_path / "lake")
    sink.put(drained_file_of(0, 1))
    shutil.rmtree(tmp_path / "lake")
    sink.put(drained_file_of(2, 3, drain_seq=2))
    assert list(sink.names("edge=edge-1/")) == [drained_file_of(2, 3, drain_seq=2).name]
    with pytest.raises(SinkUnavailable):
        DirectorySink(tmp_path / "lake").put(drained_file_of(4, 5, drain_seq=3))  # the lock was taken again
    sink.close()


def test_two_bridges_do_not_drain_one_edge_into_one_place_at_once(tmp_path: Path) -> None:
    one, two = DirectorySink(tmp_path / "lake"), DirectorySink(tmp_path / "lake")
    one.begin("edge-1")
    for call in (lambda: two.begin("edge-1"), lambda: two.put(drained_file_of(0, 1))):
        with pytest.raises(SinkUnavailable, match="another bridge drains this edge there"):
            call()
    two.begin("edge-2")
    one.begin("edge-1")
    one.close()
    two.begin("edge-1")
    two.close()


def test_a_lock_on_a_file_system_that_was_mounted_again_is_taken_again(tmp_path: Path) -> None:
    sink = DirectorySink(tmp_path / "lake")
    sink.begin("edge-1")
    (descriptor,) = sink._locks.values()
    os.close(descriptor)  # fails for ever from now on, as that of a share that is gone
    sink.begin("edge-1")
    file = drained_file_of(0, 9)
    sink.put(file)
    assert list(sink.names("edge=edge-1/")) == [file.name]
    with pytest.raises(SinkUnavailable, match="another bridge"):
        DirectorySink(tmp_path / "lake").begin("edge-1")
    sink.close()


def test_a_file_system_without_hard_links_is_named_as_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    sink = DirectorySink(tmp_path / "lake")
    with pytest.raises(SinkUnavailable, match="second name") as caught:
        sink.put(drained_file_of(0, 9))
    assert "hard links" in caught.value.hint
    sink.close()


def test_a_full_disk_that_refuses_the_name_of_the_holder_keeps_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sink = DirectorySink(tmp_path / "lake")
    sink.hold_as(Holder("1" * 32, "boot", "1.1", "one"))
    with monkeypatch.context() as patched, pytest.raises(SinkUnavailable, match="No space"):
        patched.setattr(os, "pwrite", refuse)
        sink.begin("edge-1")
    sink.begin("edge-1")
    sink.close()


@needs_obstore
def test_a_page_that_answers_instead_of_an_object_store_is_not_all_in_the_error() -> None:
    class Portal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(511)
            self.end_headers()
            self.wfile.write(b"<html><img src='data:image/png;base64," + b"aB9xYz0q" * 100_000 + b"'></html>")

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Portal) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        store = {"endpoint": f"http://127.0.0.1:{server.server_port}", "allow_http": "true"}
        keys = {"access_key_id": "id", "secret_access_key": "secret", "region": "here"}
        sink = open_file_sink("s3://bucket/lake", {**store, **keys})
        with pytest.raises(SinkUnavailable, match="511 Network Authentication Required") as caught:
            sink.begin("edge-1")
        assert len(str(caught.value)) < 500
        server.shutdown()
