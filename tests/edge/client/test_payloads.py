"""Payloads: bytes-like objects and text; anything else is refused where it is given."""

from array import array

import pytest

import edge.client
from brim import publish
from edge.consumers.protocol import Letter
from edge.mqtt import ProtocolError, Publish, Will, payload_bytes
from tests.support.scripted_broker import scripted

WRONG = [5, None, 1.5, {"a": 1}, ["x"], True]


@pytest.mark.parametrize("payload", WRONG, ids=repr)
async def test_a_payload_that_is_neither_bytes_nor_text_is_a_type_error_that_names_it(
    payload: object,
) -> None:
    async with scripted() as broker:
        client = edge.client.connect(broker.url)
        for call in (client.publish, client.submit):
            with pytest.raises(
                TypeError, match=f"payload must be bytes or str, not {type(payload).__name__}"
            ):
                await call("t", payload)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="payload must be bytes or str, not "):
        edge.client.connect(will=Will("gone", payload))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="payload must be bytes or str, not "):
        publish([(Letter("t"), payload)], runtime_dir="/nonexistent")  # type: ignore[list-item]


def test_whatever_has_a_buffer_is_a_payload() -> None:
    assert payload_bytes("ü") == b"\xc3\xbc"
    for payload in (b"ab", bytearray(b"ab"), memoryview(b"xaxb")[1::2], array("B", b"ab")):
        assert payload_bytes(payload) == b"ab"  # type: ignore[arg-type]


async def test_text_is_the_payload_of_a_will_as_well() -> None:
    client = edge.client.connect(will=Will("gone", "ü"))  # type: ignore[arg-type]
    will = client._options.connect_packet("c").will
    assert will == Will("gone", "ü".encode())
    assert Publish("t", will.payload).payload == b"\xc3\xbc"


def test_a_letter_to_a_wildcard_topic_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ProtocolError, match="wildcard in topic name 'a/#'"):
        publish([(Letter("a/#"), b"x")], runtime_dir="/nonexistent")
