"""The consumers' protocol in bytes, as clients in other languages send and get it."""

import json
import re
import socket

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.consumers import protocol
from edge.consumers.delivery_settings import DeliverySettings, SettingInfo
from edge.consumers.protocol import (
    PROTOCOL,
    VERSION,
    Ack,
    Acked,
    Alive,
    Answer,
    BatchInfo,
    Commit,
    Done,
    Failed,
    Fetch,
    Fetched,
    Forget,
    GroupInfo,
    GroupList,
    Groups,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Letter,
    MemberInfo,
    Nack,
    PlaceInfo,
    Publish,
    Published,
    Read,
    Records,
    Request,
    Reset,
    RingInfo,
    RingList,
    Rings,
    SetGroup,
)
from edge.errors import ControlError
from edge.rpc.protocol import MalformedRequest, encode
from ringbuf import FLAG_PROPERTIES, Batch, Ring
from ringbuf.errors import Corrupt
from ringbuf.record import encode as encode_record
from tests.support.consumer_desk import Desk, endpoint_over
from tests.support.consumer_vectors import json_text, vectors
from tests.support.waiting import PATIENCE_S

V = VERSION

REQUESTS: dict[str, Request] = {
    "join": Join(1, V, "billing", ("a/#",), "queue", "oldest", 6_000, "till", "0123"),
    "join, short": Join(1, V, "billing", ("a/#",)),
    "join, with settings": Join(
        1,
        V,
        "billing",
        ("a/#",),
        settings=DeliverySettings(60_000, 3, 1_000, 30_000),
    ),
    "join, at a time": Join(1, V, "billing", ("a/#",), start="time", start_value=1_700_000_000_000_000_000),
    "join, of a replay": Join(
        1,
        V,
        "billing",
        ("a/#",),
        start="time",
        settings=DeliverySettings(speed_permille=10_000),
        start_value=1_700_000_000_000_000_000,
    ),
    "join, with a limit": Join(1, V, "billing", ("a/#",), in_flight_max=100),
    "join, with a priority": Join(1, V, "billing", ("a/#",), priority=-5),
    "heartbeat": Heartbeat(2, V, "billing", "m", working=True),
    "leave": Leave(3, V, "billing", "m"),
    "fetch": Fetch(4, V, "billing", "m", 65_536, 250),
    "fetch, by count": Fetch(4, V, "billing", "m", max_records=10),
    "commit": Commit(5, V, "billing", "m", 7, "press-0", 3, 1 << 40),
    "ack": Ack(6, V, "billing", "m", 7, "press-0", 3, ((10, 5), (20, 1))),
    "nack": Nack(7, V, "billing", "m", 7, "press-0", 3, ((10, 5),), 1_000, "no good", counts=False),
    "rings": Rings(8, V, ("a/+", "b")),
    "read": Read(9, V, "press-0", 3, 100, None, 4_096),
    "read, of some topics": Read(9, V, "press-0", 3, 100, None, 4_096, 500, ("a/+", "b")),
    "publish": Publish(10, V, (Letter("a/1", 1, True, (("k", "v"),), 5), Letter("b"))),
    "groups": Groups(11, V, "billing"),
    "set": SetGroup(14, V, "billing", DeliverySettings(lease_ms=60_000), ("tries_max",)),
    "set, of a speed": SetGroup(14, V, "billing", DeliverySettings(speed_permille=500)),
    "reset": Reset(12, V, "billing", "time", 1_700_000_000_000_000_000, ("press-0",)),
    "forget": Forget(13, V, "billing"),
}
ANSWERS: dict[str, Answer] = {
    "joined": Joined(1, "m", 7, 2_000, 30_000, ("press-0",)),
    "alive": Alive(2, 8, ("press-0", "press-1")),
    "done": Done(3),
    "fetched": Fetched(
        4, 7, (BatchInfo("press-0", 3, 10, 5), BatchInfo("press-1", 3, 0, 9, 2, again=True)),
    ),
    "acked": Acked(6, 5, 1),
    "acked, in part": Acked(6, 5, 3, ((10, 1), (12, 2))),
    "ring_list": RingList(8, (RingInfo("press-0", "press", 3, 10, 20),)),
    "records": Records(9, 3, 15, BatchInfo("press-0", 3, 10, 5), 2),
    "published": Published(10, 1, (1,), (2, 3)),
    "group_list": GroupList(
        11,
        (
            GroupInfo(
                "billing", "ordered", ("a/#",), 4,
                (MemberInfo("m", "till", ("press-0",), 5),),
                (PlaceInfo("press-0", 3, 10, 1, 15, 4, 5, "m", 1_700_000_000_000_000_000, {"acked": 9}),),
            ),
        ),
        {"requests": 12},
    ),
    "group_list, with settings": GroupList(
        15,
        (GroupInfo("billing", "queue", ("b",), 0, (), (), {"lease_ms": SettingInfo(60_000, "operator")}),),
        {},
    ),
    "group_list, with limits": GroupList(
        16, (GroupInfo("billing", "queue", ("b",), 0, (MemberInfo("m", "till", (), 5, -5, 100),), ()),), {}
    ),
    "failed": Failed(12, "why", "fenced", "what to do"),
}  # fmt: skip


ALL: dict[str, Request | Answer] = {f"request {name}": it for name, it in REQUESTS.items()}
ALL.update({f"answer {name}": it for name, it in ANSWERS.items()})
MESSAGES = {vector.title: vector for vector in vectors("request", "answer")}


def test_every_message_has_golden_bytes():
    assert set(MESSAGES) == set(ALL)
    kinds = {type(it) for it in ALL.values()}
    assert kinds == {*Request.__args__, *Answer.__args__}


@pytest.mark.parametrize("name", ALL)
def test_a_message_has_these_bytes_and_these_bytes_mean_it(name):
    data, message = MESSAGES[name].bytes_of("msgpack"), ALL[name]
    assert encode(message) == data
    if name.startswith("request"):
        assert PROTOCOL.decode_request(data) == message
    else:
        assert PROTOCOL.decode_answer(data) == message


@pytest.mark.parametrize("name", ALL)
def test_the_json_of_a_vector_is_its_msgpack(name):
    """So that a client in another language may check its own codec in both directions."""
    vector = MESSAGES[name]
    content = json.loads(vector["json"])
    assert msgspec.msgpack.encode(content) == vector.bytes_of("msgpack")
    assert msgspec.msgpack.decode(vector.bytes_of("msgpack")) == content
    assert json_text(content) == vector["json"]


@pytest.mark.parametrize("vector", vectors("malformed"), ids=str)
def test_the_broker_answers_a_malformed_request_with_its_number(vector, runtime_directory):
    with Desk(runtime_directory) as desk:
        desk.coordinator.receive(b"peer", vector.bytes_of("msgpack"))
        expected = json.loads(vector["answer"])
        answer = desk.answer_to(expected["id"])
        assert isinstance(answer, Failed)
        assert {"op": "failed", "id": answer.id, "code": answer.code} == expected


@pytest.mark.parametrize("vector", vectors("frame"), ids=str)
def test_a_frame_has_these_records(vector):
    data, epoch, offset = vector.bytes_of("bytes"), int(vector["epoch"]), int(vector["offset"])
    if "invalid" in vector.lines:
        with pytest.raises(Corrupt):
            Batch.of(data, epoch, offset, None, offset + int(vector["count"]))
        return
    batch = Batch.of(data, epoch, offset, None, offset + int(vector["count"]))
    seen = [
        f"{it.offset} {it.timestamp_ns} {it.flags} {it.key.decode()} {bytes(it).hex() or '-'}" for it in batch
    ]
    assert seen == vector.all("record")
    written = (line.split(" ") for line in vector.all("record"))
    properties = bytes.fromhex(vector.lines.get("properties", [""])[0])
    frame = b"".join(
        encode_record(
            int(number), bytes.fromhex(payload.strip("-")), epoch=epoch, key=topic.encode(),
            timestamp_ns=int(stamp), flags=int(flags),
            properties=properties if int(flags) & FLAG_PROPERTIES else b"",
        )
        for number, stamp, flags, topic, payload in written
    )  # fmt: skip
    assert frame == data


def test_the_bytes_of_the_transport_open_a_connection(runtime_directory, tmp_path):
    """The handshake of a client without libzmq: the greeting, READY, then a message; and the answer."""
    (transport,) = vectors("transport")
    path = tmp_path / "consumers.sock"
    with (
        Ring.create(runtime_directory / "some-0", capacity_bytes=1 << 16, epoch=1) as ring,
        endpoint_over(ring, tmp_path, f"ipc://{path}"),
        socket.socket(socket.AF_UNIX) as client,
    ):
        client.settimeout(PATIENCE_S)
        client.connect(str(path))
        wanted = transport.bytes_of("answer")
        client.sendall(transport.bytes_of("greeting"))
        greeting = receive(client, 64)  # libzmq disconnects a client that does not wait for it
        client.sendall(transport.bytes_of("ready"))
        assert (greeting[:1], greeting[9:12], greeting[12:16]) == (b"\xff", b"\x7f\x03\x01", b"NULL")
        flags, size = receive(client, 2)
        ready = receive(client, size)
        assert (flags, ready[:6]) == (4, b"\x05READY")
        client.sendall(transport.bytes_of("request"))
        assert receive(client, len(wanted)) == wanted


def receive(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = client.recv(count - len(data))
        assert more, data
        data += more
    return data


def test_the_table_of_the_protocol_names_every_message():
    table = protocol.__doc__
    assert table is not None
    for it in ALL.values():
        op = msgspec.msgpack.decode(encode(it))["op"]
        assert re.search(rf"\b{op}\b", table), op


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_an_answer_to_it(data):
    assert 0 <= id_of(data) < 1 << 63


@given(st.sampled_from(sorted(REQUESTS)), st.data())
def test_a_request_with_any_byte_changed_is_understood_or_answered(name, data):
    good = bytearray(encode(REQUESTS[name]))
    good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    id_of(bytes(good))


def id_of(data: bytes) -> int:
    try:
        return int(PROTOCOL.decode_request(data).id)
    except MalformedRequest as error:
        return error.id


def test_further_keys_are_ignored():
    found = PROTOCOL.decode_request(encode({**msgspec.to_builtins(REQUESTS["leave"]), "new": [1]}))
    assert found == REQUESTS["leave"]


@pytest.mark.parametrize("data", [b"", b"\xc1", encode({"op": "none", "id": 1})])
def test_what_is_no_answer_is_told(data):
    with pytest.raises(ControlError, match="no answer"):
        PROTOCOL.decode_answer(data)
