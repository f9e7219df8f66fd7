"""The ZeroMQ sink and the collector: files arrive whole, once, and from one bridge of an edge."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from bridge.collecting import HOLD_S, pack, unpack
from bridge.collector import Collector
from bridge.errors import BadName, BridgeError, SinkBlocked, SinkConflict, SinkUnavailable
from bridge.sink import RecordSink, open_sink
from bridge.sinks.directory import DirectorySink
from bridge.sinks.zeromq import ZmqSink
from bridge.unit import Unit, compressed
from tests.support.bridges import drain, publish, ring, run_dry, settings
from tests.support.drained_files import offsets_drained, unit_of
from tests.support.waiting import wait_until


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def collecting(root: Path, **options: Any) -> Iterator[Collector]:
    store = DirectorySink(root)
    collector = Collector(store, options.pop("endpoint", "tcp://127.0.0.1:*"), **options)
    thread = threading.Thread(target=collector.run)
    thread.start()
    try:
        yield collector
    finally:
        collector.stop()
        thread.join()
        store.close()


@pytest.fixture
def opened() -> Iterator[Callable[..., ZmqSink]]:
    made: list[ZmqSink] = []

    def open_it(collector: Collector, **options: str) -> ZmqSink:
        sink = open_sink(collector.endpoint.replace("tcp://", "zmq://"), options)
        assert isinstance(sink, ZmqSink)
        assert not isinstance(sink, RecordSink)
        made.append(sink)
        return sink

    yield open_it
    for sink in made:
        sink.close()
        sink.close()


def content(unit: Any) -> bytes:
    return b"".join(unit.parts)


def test_units_are_there_once_however_often_and_from_how_many_threads(
    tmp_path: Path, opened: Callable[..., ZmqSink]
) -> None:
    units = [unit_of(10 * n, 10 * n + 9, drain_seq=n + 1) for n in range(20)]
    with collecting(tmp_path / "lake", credit_bytes=2 * units[0].length) as collector:
        sink = opened(collector)
        sink.begin("edge-1")
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(sink.put, units + units))
        small = compressed(unit_of(200, 209, drain_seq=21))
        sink.put(replace(small, name=f"{small.name}.zst"))
        assert sorted(sink.names("edge=edge-1/"))[:20] == sorted(unit.name for unit in units)
        assert list(sink.names("edge=edge-1/dt=1999-01-01/")) == []
        sink.close()
    for unit in units:
        assert (tmp_path / "lake" / unit.name).read_bytes() == content(unit)


def test_names_come_in_pieces(
    tmp_path: Path, opened: Callable[..., ZmqSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.collector.NAMES_MOST", 3)
    with collecting(tmp_path / "lake") as collector:
        sink = opened(collector)
        sink.begin("edge-1")
        units = [unit_of(n, n, drain_seq=n + 1) for n in range(8)]
        for unit in units:
            sink.put(unit)
        assert list(sink.names("edge=edge-1/")) == sorted(unit.name for unit in units)
        sink.close()


def test_a_name_that_is_taken_is_a_conflict_here_as_there(
    tmp_path: Path, opened: Callable[..., ZmqSink]
) -> None:
    with collecting(tmp_path / "lake") as collector:
        sink = opened(collector)
        sink.put(unit_of(0, 9))
        with pytest.raises(SinkConflict, match="other content") as caught:
            sink.put(unit_of(0, 9, payload=lambda _: b"another life"))
        assert "edge_id" in caught.value.hint
        sink.close()


def test_what_is_damaged_or_called_wrongly_is_not_stored(
    tmp_path: Path, opened: Callable[..., ZmqSink]
) -> None:
    with collecting(tmp_path / "lake") as collector:
        sink = opened(collector)
        unit = unit_of(0, 9)
        whole = content(unit)
        for name, data in (
            (unit.name, whole[:200] + b"?" + whole[201:]),
            (unit.name, whole[:-1]),
            (unit.name, b""),
            (unit_of(0, 8).name, whole),
            ("../../etc/passwd", whole),
            (f"../{unit.name}", whole),
        ):
            head = pack(kind="put", edge="edge-1", holder="me", name=name)
            with pytest.raises(SinkBlocked):
                sink._ask(head, data)
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        sink.close()


def test_messages_that_are_none_are_answered_and_change_nothing(tmp_path: Path) -> None:
    with (
        collecting(tmp_path / "lake") as collector,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as stranger,
    ):
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(collector.endpoint)
        for frames in ([b"hello?"], [b""], [pack(kind="put", edge="edge-1", holder="x")],
                       [pack(kind="names", edge="edge-1", holder="x", prefix="edge=edge-2/")],
                       [pack(kind="hello", edge="../x", holder="x")],
                       [pack(kind="hello", edge="edge-1", holder="x", version=99)],
                       [pack(kind="dance", edge="edge-1", holder="x")]):  # fmt: skip
            stranger.send_multipart(frames)
            assert stranger.poll(20_000)
            answer = unpack(stranger.recv())
            assert answer is not None
            assert answer["kind"] == "refused", frames


def test_what_comes_beyond_the_credit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bridge that does not keep to it, or is none, cannot fill the collector's memory."""
    goes_on = threading.Event()
    put = DirectorySink.put

    def slow(store: DirectorySink, unit: Unit) -> None:
        assert goes_on.wait(20)
        put(store, unit)

    monkeypatch.setattr(DirectorySink, "put", slow)
    units = [unit_of(10 * n, 10 * n + 9, drain_seq=n + 1) for n in range(3)]
    with (
        collecting(tmp_path / "lake", credit_bytes=2 * units[0].length) as collector,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as dealer,
    ):
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(collector.endpoint)

        def send(unit: Unit) -> None:
            dealer.send_multipart(
                [pack(kind="put", edge="edge-1", holder="h", name=unit.name), content(unit)]
            )

        def answer() -> tuple[str, str]:
            assert dealer.poll(20_000)
            found = unpack(dealer.recv())
            assert found is not None
            return found["kind"], found["name"]

        for unit in units:
            send(unit)
        assert answer() == ("refused", units[2].name)
        goes_on.set()
        assert sorted([answer(), answer()]) == [("stored", units[0].name), ("stored", units[1].name)]
        send(units[2])
        assert answer() == ("stored", units[2].name)


def test_a_second_machine_is_refused_until_the_first_is_silent_for_long(
    tmp_path: Path, opened: Callable[..., ZmqSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    with collecting(tmp_path / "lake", clock=clock) as collector:
        first, second = opened(collector), opened(collector)
        second._holder = "another machine"
        first.begin("edge-1")
        with pytest.raises(SinkUnavailable, match="drains edge edge-1") as caught:
            second.begin("edge-1")
        assert "takes over in 90 s" in caught.value.hint
        clock.now += HOLD_S + 1
        second.begin("edge-1")
        with pytest.raises(SinkUnavailable, match="another machine"):
            first.put(unit_of(0, 9))
        second.close()  # which says goodbye
        for _ in range(100):
            try:
                first.begin("edge-1")
            except SinkUnavailable:
                continue
            break
        first.put(unit_of(0, 9))
        first.close()


def test_no_collector_is_unavailable_and_one_that_comes_back_is_used_again(
    tmp_path: Path, opened: Callable[..., ZmqSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.sinks.zeromq.SEND_TIMEOUT_MS", 200)
    monkeypatch.setattr("bridge.sinks.zeromq.ANSWER_TIMEOUT_MS", 500)
    with collecting(tmp_path / "lake") as collector:
        endpoint, sink = collector.endpoint, opened(collector)
        sink.begin("edge-1")
    with pytest.raises(SinkUnavailable) as caught:
        sink.put(unit_of(0, 9))
    assert caught.value.hint
    with pytest.raises(SinkUnavailable):
        sink.begin("edge-1")
    with collecting(tmp_path / "lake", endpoint=endpoint):
        monkeypatch.setattr("bridge.sinks.zeromq.SEND_TIMEOUT_MS", 20_000)
        monkeypatch.setattr("bridge.sinks.zeromq.ANSWER_TIMEOUT_MS", 20_000)
        sink.begin("edge-1")
        sink.put(unit_of(0, 9))
        sink.close()
    assert (tmp_path / "lake" / unit_of(0, 9).name).is_file()


def test_with_keys_all_is_encrypted_and_only_known_bridges_get_in(
    tmp_path: Path, opened: Callable[..., ZmqSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.sinks.zeromq.SEND_TIMEOUT_MS", 300)
    from zmq.auth import create_certificates

    known = tmp_path / "known"
    known.mkdir()
    _, secret = create_certificates(tmp_path, "bridge")
    (tmp_path / "bridge.key").rename(known / "bridge.key")
    keys = zmq.curve_keypair()
    with collecting(tmp_path / "lake", keys=keys, clients=str(known)) as collector:
        for options in ({}, {"server_key": keys[0].decode()}):
            with pytest.raises(SinkUnavailable):
                opened(collector, **options).begin("edge-1")
        monkeypatch.setattr("bridge.sinks.zeromq.SEND_TIMEOUT_MS", 20_000)
        sink = opened(collector, server_key=keys[0].decode(), secret_key_file=secret)
        with pytest.raises(SinkUnavailable, match="another bridge of this machine"):
            sink.begin("edge-1")
        sink.put(unit_of(0, 9))
        sink.close()


def test_what_a_ring_holds_is_drained_through_a_collector(
    tmp_path: Path, opened: Callable[..., ZmqSink]
) -> None:
    made = ring(tmp_path)
    publish(made, 500, size=30)
    with collecting(tmp_path / "lake") as collector:
        sink = opened(collector)
        sink.begin("edge-1")
        with drain(settings(tmp_path, tmp_path, unit_bytes=8192, window=4), sink) as drained:
            run_dry(drained)
    made.close()
    assert list(offsets_drained(tmp_path / "lake").values()) == [list(range(500))]


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("zmq://host", {}, "no collector"),
        ("zmq+ipc://", {}, "no collector"),
        ("zmq://192.0.2.1:5571", {}, "no server_key"),
        ("zmq://192.0.2.1:5571", {"server_key": "short"}, "40"),
        ("zmq://127.0.0.1:5571", {"key": "x"}, "no option key"),
        ("zmq://127.0.0.1:5571", {"secret_key_file": "/no/such"}, "secret_key_file"),
    ],
)
def test_a_url_or_option_that_cannot_be_is_refused(url: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(BadName, match=said):
        open_sink(url, options)


def test_an_endpoint_that_is_taken_is_said(tmp_path: Path) -> None:
    with collecting(tmp_path / "lake") as collector, pytest.raises(BridgeError, match="in use"):
        Collector(DirectorySink(tmp_path / "other"), collector.endpoint)


def test_no_more_is_under_way_than_the_collector_gives_credit_for(
    tmp_path: Path, opened: Callable[..., ZmqSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    units = [unit_of(10 * n, 10 * n + 9, drain_seq=n + 1) for n in range(12)]
    under_way, most, turn = 0, 0, threading.Lock()
    put = DirectorySink.put

    def counted(self: DirectorySink, unit: Any) -> None:
        nonlocal under_way, most
        with turn:
            under_way += 1
            most = max(most, under_way)
        put(self, unit)
        with turn:
            under_way -= 1

    monkeypatch.setattr(DirectorySink, "put", counted)
    with collecting(tmp_path / "lake", credit_bytes=units[0].length) as collector:
        sink = opened(collector)
        sink.begin("edge-1")
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(sink.put, units))
        sink.close()
    assert most == 1


def asked(edge: str, holder: str) -> dict[str, Any]:
    return {"kind": "hello", "edge": edge, "holder": holder}


def test_who_drains_which_edge_is_forgotten_when_it_counts_no_more(tmp_path: Path) -> None:
    clock = Clock()
    with collecting(tmp_path / "lake", clock=clock) as collector:
        for number in range(100):
            collector._check_holder(asked(f"edge-{number}", "here"))
        clock.now += HOLD_S / 2
        collector._check_holder(asked("edge-0", "here"))
        clock.now += HOLD_S / 2
        collector._ring()
        wait_until(lambda: list(collector._holders) == ["edge-0"])
        with pytest.raises(BridgeError, match="the bridge of here drains edge edge-0"):
            collector._check_holder(asked("edge-0", "elsewhere"))
        collector._check_holder(asked("edge-1", "elsewhere"))


def test_edges_that_are_drained_at_once_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.collector.EDGES_MOST", 2)
    with collecting(tmp_path / "lake", clock=Clock()) as collector:
        for edge in ("a", "b", "a"):
            collector._check_holder(asked(edge, "here"))
        with pytest.raises(BridgeError, match="2 edges are drained here already"):
            collector._check_holder(asked("c", "here"))
        collector._check_holder({**asked("a", "here"), "kind": "bye"})
        collector._check_holder(asked("c", "here"))
