"""The consumers' protocol in bytes, as clients in other languages send and get it."""

from __future__ import annotations

import re
from pathlib import Path

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

V = VERSION
GOLDEN = Path(__file__).parents[2] / "golden" / "consumers" / "messages.txt"

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


def golden() -> dict[str, bytes]:
    found = re.findall(r"^(request|answer) (.+): ([0-9a-f]+)$", GOLDEN.read_text(), re.MULTILINE)
    return {f"{kind} {name}": bytes.fromhex(data) for kind, name, data in found}


ALL: dict[str, Request | Answer] = {f"request {name}": it for name, it in REQUESTS.items()}
ALL.update({f"answer {name}": it for name, it in ANSWERS.items()})


def test_every_message_has_golden_bytes():
    assert set(golden()) == set(ALL)
    kinds = {type(it) for it in ALL.values()}
    assert kinds == {*Request.__args__, *Answer.__args__}


@pytest.mark.parametrize("name", ALL)
def test_a_message_has_these_bytes_and_these_bytes_mean_it(name):
    data, message = golden()[name], ALL[name]
    assert encode(message) == data
    if name.startswith("request"):
        assert PROTOCOL.decode_request(data) == message
    else:
        assert PROTOCOL.decode_answer(data) == message


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
