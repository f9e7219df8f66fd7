"""The fast decoder of CONNECT agrees with the general one, for every body that it accepts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.mqtt import Connect, Properties, ProtocolError, Version, Will, encode
from edge.mqtt.decode import _connect, _plain_connect
from edge.mqtt.primitives import Body

CONNECT = 0x10
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
PACKETS = st.one_of(
    st.builds(Connect, TEXTS, st.booleans(), st.integers(0, 65_535)),
    st.builds(Connect, TEXTS, st.booleans(), st.integers(0, 65_535), TEXTS, st.binary(max_size=20)),
    st.builds(Connect, TEXTS, username=TEXTS, version=st.sampled_from(Version)),
    st.builds(Connect, TEXTS, version=st.sampled_from(Version)),
)


def body_of(packet: Connect) -> bytes:
    data = encode(packet, packet.version)
    return data[2 if data[1] < 0x80 else 3 :]


def decoded(body: bytes) -> Connect | None:
    """The packet by the general decoder; None: it is invalid."""
    try:
        return _connect(CONNECT, Body(body, Version.V311))
    except ProtocolError:
        return None


@given(PACKETS, st.data())
def test_what_the_fast_decoder_accepts_is_decoded_equally(packet: Connect, data: st.DataObject) -> None:
    body = bytearray(body_of(packet))
    for _ in range(data.draw(st.integers(0, 2))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)) | st.just(len(body)))])
    found = _plain_connect(cut)
    assert found is None or found == decoded(cut)


@pytest.mark.parametrize("version", [Version.V311, Version.V5])
@pytest.mark.parametrize("clean_start", [False, True])
@pytest.mark.parametrize(
    ("username", "password"), [(None, None), ("ann", None), ("ann", b"\0secret"), ("", b"")]
)
def test_the_usual_forms_are_accepted(
    version: Version, clean_start: bool, username: str | None, password: bytes | None
) -> None:
    packet = Connect("press-1", clean_start, 300, username, password, version=version)
    assert _plain_connect(body_of(packet)) == _plain_connect(memoryview(body_of(packet))) == packet


@pytest.mark.parametrize(
    "packet",
    [
        Connect(""),
        Connect("a", version=Version.V31),
        Connect("a", will=Will("t", b"")),
        Connect("a", version=Version.V5, properties=Properties(receive_maximum=7)),
    ],
    ids=["no identifier", "MQTT 3.1", "a will", "properties"],
)
def test_other_forms_are_left_to_the_general_decoder(packet: Connect) -> None:
    assert _plain_connect(body_of(packet)) is None
    assert decoded(body_of(packet)) == packet


@pytest.mark.parametrize("at", range(len(body_of(Connect("abc", True, 60, "ann", b"x")))))
def test_a_body_that_is_cut_is_left_to_the_general_decoder(at: int) -> None:
    body = body_of(Connect("abc", True, 60, "ann", b"x"))
    assert _plain_connect(body[:at]) is None


@pytest.mark.parametrize("body", [b"a\0b", b"\xff", b"\xed\xa0\x80"], ids=["NUL", "no UTF-8", "surrogate"])
def test_an_invalid_identifier_is_left_to_the_general_decoder(body: bytes) -> None:
    head = body_of(Connect("abc"))[:10]
    assert _plain_connect(head + len(body).to_bytes(2) + body) is None
