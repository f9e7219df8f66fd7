"""Frames of WebSocket clients through the C decoder: each rule of RFC 6455 that a server meets."""

import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from tests.ringbuf.test_sanitizers import ADDRESS, sanitized_or_skip

MESSAGE_MAX = 100_000
NO_LIMIT = 2**32 - 1
NO_CODE = 1005
ANSWERS_BYTES = 5 * 127
SOURCES = ("mqtt/transport/websocket", "base/utf8")
MASK = b"\x11\x22\x83\x04"


@dataclass(frozen=True)
class Outcome:
    """The decoder's state after all of its input."""

    payload: bytes = b""
    answers: bytes = b""
    code: int = 0
    is_closed_by_client: bool = False


class Decoder:
    """The decoder as a process: one connection for each call."""

    def __init__(self, program: Path) -> None:
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, *pieces: bytes, message_max: int = MESSAGE_MAX, frames_max: int = NO_LIMIT) -> Outcome:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        words = [str(message_max), str(frames_max), *(it.hex() or "-" for it in pieces)]
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        payload, answers, code, closed = self.process.stdout.readline().split()
        return Outcome(
            bytes.fromhex(payload.strip("-")), bytes.fromhex(answers.strip("-")), int(code), closed == "1"
        )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sanitized_or_skip(tmp_path_factory.mktemp("ws"), "websocket", *ADDRESS, sources=SOURCES)


@pytest.fixture(scope="module")
def decoder(program: Path) -> Iterator[Decoder]:
    decoder = Decoder(program)
    assert decoder(b"") == Outcome()  # it runs, and has the name that it keeps
    yield decoder
    assert decoder.process.stdin is not None
    decoder.process.stdin.close()
    assert decoder.process.wait(30) == 0
    assert decoder.process.stdout is not None
    decoder.process.stdout.close()


def masked(payload: bytes, mask: bytes = MASK) -> bytes:
    return bytes(it ^ mask[n % 4] for n, it in enumerate(payload))


def frame(first: int, payload: bytes = b"", *, length: bytes | None = None) -> bytes:
    """A masked frame; `length`: other bytes than the shortest form of the length."""
    if length is None:
        size = len(payload)
        forms = ((125, "!B", ()), (65_535, "!BH", (126,)), (2**63, "!BQ", (127,)))
        form, head = next((form, head) for most, form, head in forms if size <= most)
        length = struct.pack(form, *head, size)
    return bytes([first, length[0] | 0x80]) + length[1:] + MASK + masked(payload)


def binary(payload: bytes) -> bytes:
    return frame(0x82, payload)


def ping(payload: bytes = b"") -> bytes:
    return frame(0x89, payload)


def close(code: int | None = None, reason: bytes = b"") -> bytes:
    return frame(0x88, b"" if code is None else struct.pack("!H", code) + reason)


def pong(payload: bytes = b"") -> bytes:
    return bytes([0x8A, len(payload)]) + payload


HELLO = binary(b"hello")
FAILED = Outcome(b"hello", code=1002)

GOOD = {
    "one frame": (HELLO, Outcome(b"hello")),
    "an empty frame": (binary(b""), Outcome()),
    "two messages": (HELLO + binary(b"world"), Outcome(b"helloworld")),
    "lengths around those of headers": (
        b"".join(binary(bytes(it)) for it in (1, 3, 4, 7, 8, 15, 17, 125, 126)),
        Outcome(bytes(306)),
    ),
    "fragments": (frame(0x02, b"he") + frame(0x00, b"l") + frame(0x80, b"lo"), Outcome(b"hello")),
    "empty fragments": (frame(0x02) + frame(0x00) * 5 + frame(0x80), Outcome()),
    "a message after fragments": (frame(0x02, b"a") + frame(0x80, b"b") + HELLO, Outcome(b"abhello")),
    "a ping": (ping(), Outcome(b"", pong())),
    "the longest ping": (ping(bytes(range(125))), Outcome(b"", pong(bytes(range(125))))),
    "pings are answered in order": (ping(b"1") + ping(b"22"), Outcome(b"", pong(b"1") + pong(b"22"))),
    "a ping between fragments": (
        frame(0x02, b"hel") + ping(b"x") + frame(0x80, b"lo"),
        Outcome(b"hello", pong(b"x")),
    ),
    "a pong that was not requested": (frame(0x8A, b"x") + HELLO, Outcome(b"hello")),
    "a pong between fragments": (frame(0x02, b"hel") + frame(0x8A) + frame(0x80, b"lo"), Outcome(b"hello")),
    "close without a code": (HELLO + close(), Outcome(b"hello", b"", NO_CODE, True)),
    "close with the longest reason": (close(1000, b"x" * 123), Outcome(code=1000, is_closed_by_client=True)),
    "close with a reason beyond ASCII": (close(1001, "ü€".encode()), Outcome(b"", b"", 1001, True)),
    "close between fragments": (frame(0x02, b"he") + close(1000), Outcome(b"he", b"", 1000, True)),
    "frames after close are ignored": (close(1000) + HELLO + ping(), Outcome(b"", b"", 1000, True)),
    "a violation after close is ignored": (close(1000) + b"\xff\xff", Outcome(b"", b"", 1000, True)),
}
GOOD |= {
    f"close with code {code}": (close(code), Outcome(b"", b"", code, True))
    for code in (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1014, 3000, 3999, 4000, 4999)
}
BAD = {
    "a text frame": (HELLO + frame(0x81, b"x"), Outcome(b"hello", code=1003)),
    "an empty text frame": (HELLO + frame(0x81), Outcome(b"hello", code=1003)),
    "text in fragments": (HELLO + frame(0x01), Outcome(b"hello", code=1003)),
    "a frame without a mask": (HELLO + b"\x82\x02hi", FAILED),
    "an empty frame without a mask": (HELLO + b"\x82\x00", FAILED),
    "a ping without a mask": (HELLO + b"\x89\x00", FAILED),
    "a close frame without a mask": (HELLO + b"\x88\x00", FAILED),
    "a continuation without a beginning": (HELLO + frame(0x80), FAILED),
    "a fragment without a beginning": (HELLO + frame(0x00), FAILED),
    "a continuation after the last": (
        frame(0x02, b"he") + frame(0x80, b"llo") + frame(0x80, b"x"),
        FAILED,
    ),
    "a message within fragments": (frame(0x02, b"hello") + binary(b"x"), FAILED),
    "another beginning within fragments": (frame(0x02, b"hello") + frame(0x02), FAILED),
    "text within fragments": (frame(0x02, b"hello") + frame(0x81), FAILED),
    "a ping in fragments": (HELLO + frame(0x09), FAILED),
    "a close frame in fragments": (HELLO + frame(0x08), FAILED),
    "a ping of 126 bytes": (HELLO + ping(bytes(126)), FAILED),
    "a close frame of 126 bytes": (HELLO + close(1000, b"x" * 124), FAILED),
    "a control frame with a length of 64 bits": (
        HELLO + frame(0x8A, length=struct.pack("!BQ", 127, 0)),
        FAILED,
    ),
    "16 bits for a length of 7": (HELLO + frame(0x82, length=struct.pack("!BH", 126, 125)), FAILED),
    "64 bits for a length of 7": (HELLO + frame(0x82, length=struct.pack("!BQ", 127, 0)), FAILED),
    "64 bits for a length of 16": (HELLO + frame(0x82, length=struct.pack("!BQ", 127, 65_535)), FAILED),
    "a length with the top bit": (HELLO + frame(0x82, length=struct.pack("!BQ", 127, 1 << 63)), FAILED),
    "the longest length": (
        HELLO + frame(0x82, length=struct.pack("!BQ", 127, (1 << 63) - 1)),
        Outcome(b"hello", code=1009),
    ),
    "close with a payload of one byte": (HELLO + frame(0x88, b"\x03"), FAILED),
    "close with a reason that is not UTF-8": (
        HELLO + close(1000, b"\xce\xba\xed\xa0\x80"),
        Outcome(b"hello", code=1007),
    ),
    "close with a reason that is cut in a character": (
        HELLO + close(1000, b"\xe2\x82"),
        Outcome(b"hello", code=1007),
    ),
    "frames after a violation": (HELLO + frame(0x83) + HELLO + ping() + close(1000), FAILED),
}
BAD |= {
    f"reserved bits {bits:#x}": (HELLO + frame(0x82 | bits), FAILED)
    for bits in (0x10, 0x20, 0x40, 0x30, 0x50, 0x60, 0x70)
}
BAD |= {
    f"opcode {opcode:#x}": (HELLO + frame(0x80 | opcode), FAILED)
    for opcode in (3, 4, 5, 6, 7, 0xB, 0xC, 0xD, 0xE, 0xF)
}
BAD |= {f"a reserved bit in opcode {it}": (HELLO + frame(0xC0 | it), FAILED) for it in (8, 9, 10)}
BAD |= {
    f"close with code {code}": (HELLO + close(code), FAILED)
    for code in (0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535)
}
VECTORS = {**GOOD, **BAD}


@pytest.mark.parametrize("name", VECTORS)
def test_frames_mean_the_same_however_they_are_cut(decoder: Decoder, name: str) -> None:
    data, expected = VECTORS[name]
    assert decoder(data) == expected
    assert decoder(*(data[i : i + 1] for i in range(len(data)))) == expected
    for cut in range(1, len(data)):
        assert decoder(data[:cut], data[cut:]) == expected


@pytest.mark.parametrize("size", [125, 126, 65_535, 65_536, 70_000])
def test_lengths_have_three_forms(decoder: Decoder, size: int) -> None:
    payload = bytes(it % 251 for it in range(size))
    data = binary(payload) + ping()
    for cut in (0, 1, 2, 9, 10, 13, 14, 15, size // 2, len(data) - 7, len(data)):
        assert decoder(data[:cut], data[cut:]) == Outcome(payload, pong())


def test_the_limit_is_that_of_a_message(decoder: Decoder) -> None:
    limit = MESSAGE_MAX
    assert decoder(binary(bytes(limit)) * 3).code == 0
    assert decoder(binary(bytes(limit + 1))) == Outcome(code=1009)
    half = frame(0x02, bytes(limit // 2))
    assert decoder(half + frame(0x80, bytes(limit // 2)) + HELLO).code == 0
    over = decoder(half + frame(0x80, bytes(limit // 2 + 1)))
    assert over == Outcome(bytes(limit // 2), code=1009)


def test_frames_before_an_answer_are_counted(decoder: Decoder) -> None:
    assert decoder(frame(0x02, b"a"), frame(0x80, b"b"), frames_max=2) == Outcome(b"ab")
    assert decoder(binary(b"a") * 2 + ping(b"x"), frames_max=2) == Outcome(b"aa", code=1008)
    assert decoder(ping() * 2 + binary(b"a"), frames_max=2) == Outcome(b"", pong() * 2, 1008)


def test_of_many_pings_the_last_is_answered(decoder: Decoder) -> None:
    """Section 5.5.3.  The answers have a bound, whatever the client does not read."""
    numbers = [b"%03d" % it * 20 for it in range(1_000)]
    answers = decoder(b"".join(map(ping, numbers))).answers
    assert len(answers) <= ANSWERS_BYTES
    assert answers.startswith(pong(numbers[0]) + pong(numbers[1]))
    assert answers.endswith(pong(numbers[-1]))


def oracle(data: bytes) -> Outcome:
    """The outcome by the library `websockets`, with MQTT's rule for text."""
    protocol = ServerProtocol(max_size=MESSAGE_MAX, state=OPEN)
    protocol.receive_data(data)
    payload = b""
    for event in protocol.events_received():
        assert isinstance(event, Frame)
        if event.opcode is Opcode.TEXT:
            return Outcome(payload, code=1003)
        if event.opcode in {Opcode.BINARY, Opcode.CONT}:
            payload += bytes(event.data)
    sent = protocol.close_sent
    answers = b"".join(protocol.data_to_send())
    answers = answers[: answers.find(b"\x88")] if sent is not None else answers
    code = 0 if sent is None else sent.code
    return Outcome(payload, answers, code, protocol.close_rcvd is not None)


SHORT = st.binary(max_size=20).map(lambda it: it.replace(b"\x88", b"."))
MASKS = st.binary(min_size=4, max_size=4)


def with_mask(first: int, payload: bytes, mask: bytes) -> bytes:
    length = bytes([len(payload) | 0x80])
    return bytes([first]) + length + mask + masked(payload, mask)


CONTROLS = st.builds(with_mask, st.sampled_from((0x89, 0x8A)), SHORT, MASKS)
MESSAGES = st.one_of(
    st.builds(with_mask, st.just(0x82), st.binary(max_size=125), MASKS),
    st.builds(
        lambda *parts: b"".join(parts),
        st.builds(with_mask, st.just(0x02), SHORT, MASKS),
        st.one_of(st.just(b""), CONTROLS),
        st.builds(with_mask, st.just(0x00), SHORT, MASKS),
        st.builds(with_mask, st.just(0x80), SHORT, MASKS),
    ),
)
STREAMS = st.lists(st.one_of(MESSAGES, CONTROLS), min_size=1, max_size=8)
CLOSES = st.one_of(
    st.just(b""),
    st.builds(lambda code: frame(0x88, Close(code, "x").serialize()), st.sampled_from((1000, 1001, 4000))),
)


@given(STREAMS, CLOSES, st.data())
def test_another_implementation_understands_the_same(
    decoder: Decoder, parts: list[bytes], end: bytes, data: st.DataObject
) -> None:
    stream = b"".join(parts) + end
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert decoder(*pieces) == oracle(stream)


@given(STREAMS, st.data())
def test_another_implementation_refuses_the_same(
    decoder: Decoder, parts: list[bytes], data: st.DataObject
) -> None:
    """The first byte of one frame is changed: FIN, reserved bits, opcode."""
    number = data.draw(st.integers(0, len(parts) - 1))
    first = data.draw(st.integers(0, 255).filter(lambda it: it & 15 != 8))
    parts[number] = bytes([first]) + parts[number][1:]
    ours, theirs = decoder(b"".join(parts)), oracle(b"".join(parts))
    assert (ours.payload, ours.code) == (theirs.payload, theirs.code)
