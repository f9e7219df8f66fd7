"""Fuzzing of control packets, which Python decodes and handles: what they raise, and the time they take.

An input is a frame: golden packets, and packets that are all user properties or filters, mutated in their
items (repeated up to the longest CONNECT, dropped, spliced with those of other packets, lengths right) and in
their bytes.  For each frame and protocol version must hold:

    decoding    raises nothing but ProtocolError
    limits      with the broker's default limits it takes at most BASE_S + 1 ms for each 64 KiB
    linear      without limits, as clients and bridges decode, BASE_S + LINEAR_S for each 64 KiB: the
                shortest element has 4 bytes and takes Python some microseconds
    handling    a client that sends it costs the broker's thread at most BASE_S + 1 ms for each 64 KiB
                between two polls

BASE_S is what the longest packet within the limits may take.  Times are of this thread's processor, the
shortest of REPEATS: a busy machine finds nothing.  What a run finds is written to the current directory.
"""

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from random import Random

from edge.broker.broker_limits import BrokerLimits
from edge.engine.engine import EngineLimits
from edge.mqtt import Connect, ProtocolError, Version, decode_packet
from edge.mqtt.primitives import UNLIMITED, PacketLimits, decode_variable_integer, encode_variable_integer
from tests.support.mqtt_bench import Bench
from tests.support.mqtt_vectors import vectors

BLOCK_BYTES = 64 << 10
BASE_S = 0.006
BLOCK_S = 0.001
LINEAR_S = 0.080
REPEATS = 5
SURELY = 5  # times what is allowed: no need to repeat
INPUT_BYTES_MAX = 384 << 10  # limits.connect_max_bytes
FULL_FIRST = 26  # the first seeds, which are long, are sent to a broker
HANDLED_SHARE = 8  # one of so many inputs is also sent to a broker
LIMITS = BrokerLimits().packets
LEVELS = {Version.V31: b"\0\6MQIsdp\3", Version.V311: b"\0\4MQTT\4", Version.V5: b"\0\4MQTT\5"}


class Found(AssertionError):
    """Error in a frame."""

    def __init__(self, words: str, frame: bytes) -> None:
        super().__init__(f"{words}: {len(frame)} bytes, {frame[:40].hex(' ')} ...")
        self.frame = frame


@dataclass(frozen=True)
class Shape:
    """A packet by its items: their number changes, lengths follow."""

    first: int
    head: bytes
    properties: tuple[bytes, ...] | None = None  # None: no property set
    middle: bytes = b""
    items: tuple[bytes, ...] = ()

    def frame(self) -> bytes:
        """Its bytes, with all lengths right."""
        body = self.head
        if self.properties is not None:
            body += _lengthed(b"".join(self.properties))
        body += self.middle + b"".join(self.items)
        return bytes((self.first,)) + _lengthed(body)


def _lengthed(data: bytes) -> bytes:
    return encode_variable_integer(len(data), Version.V5) + data


def _string(text: bytes) -> bytes:
    return len(text).to_bytes(2) + text


def _body(frame: bytes) -> bytes | None:
    """Bytes after the fixed header; None: the fixed header is not complete."""
    with suppress(ProtocolError):
        if length := decode_variable_integer(frame, 1, len(frame)):
            return frame[1 + length[1] :]
    return None


USER = (b"\x26" + _string(b"key") + _string(b"value"), b"\x26\0\0\0\0")
OTHERS = (
    b"\x11\0\0\0\1", b"\x21\0\7", b"\x27\0\0\x10\0", b"\x17\1", b"\x15" + _string(b"SCRAM"), b"\x0b\x07",
    b"\x16" + _string(b"x" * 99), b"\x1f" + _string(b"because"), b"\x18\0\0\0\1",
    b"\x08" + _string(b"answer"),
)  # fmt: skip
FILTERS = (
    b"a", b"+", b"#", b"a/b", b"+/" * 30 + b"#", b"$share/g/a", b"x" * 300, "ä/日".encode(), b"$SYS/#",
    b"/".join([b"+"] * 13), b"level/" * 200 + b"end", b"+/" * 2_000 + b"a+",
)  # fmt: skip


def _connects() -> list[Shape]:
    found = []
    for version, level in LEVELS.items():
        properties = (*OTHERS[:4], *USER) if version is Version.V5 else None
        begin = level + b"\xc6\0\x3c"
        fields = (_string(b"id"), *((_lengthed(b"".join(USER)),) if properties else ()))
        items = (*fields, _string(b"will/topic"), _string(b"payload"), _string(b"user"), _string(b"password"))
        found.append(Shape(0x10, begin, properties, b"", items))
    return found


def seeds() -> list[Shape]:
    """A shape for every control packet and version that has items to repeat, and every golden frame."""
    subscribe = tuple(_string(name) + b"\0" for name in FILTERS)
    unsubscribe = tuple(map(_string, FILTERS))
    found = _full() + _connects()
    for properties in (None, (b"\x0b\x07", *USER), USER):
        found.append(Shape(0x82, b"\0\1", properties, b"", subscribe))
        found.append(Shape(0xA2, b"\0\1", properties, b"", unsubscribe))
    found += [Shape(first, b"\0\1\0", (OTHERS[7], *USER)) for first in (0x40, 0x50, 0x62, 0x70)]
    found += [Shape(first, b"\0\1", USER, b"\0\1\2") for first in (0x90, 0xB0)]
    found.append(Shape(0xE0, b"\0", (OTHERS[0], OTHERS[7], *USER)))
    found.append(Shape(0xF0, b"\x18", (OTHERS[4], OTHERS[6], *USER)))
    found.append(Shape(0x20, b"\0\0", (OTHERS[1], *USER)))
    for vector in vectors():
        if vector.frame[0] >> 4 != 3 and (body := _body(vector.frame)) is not None:
            found.append(
                Shape(vector.frame[0], b"", None, b"", tuple(body[n : n + 1] for n in range(len(body))))
            )
    return found


def _full() -> list[Shape]:
    """Packets at a limit of the broker, and as long as a CONNECT may be."""
    found = []
    for count in (LIMITS.user_properties_max, 20_000, INPUT_BYTES_MAX // 5 - 20):
        user = USER[1:] * count
        found.append(Shape(0x10, LEVELS[Version.V5] + b"\2\0\0", user, b"", (_string(b"id"),)))
        found += [Shape(first, b"\0\1", user, b"", (_string(b"a") + b"\0",)) for first in (0x82, 0xA2)]
        found += [Shape(0xE0, b"\0", user), Shape(0xF0, b"\x18", user), Shape(0x40, b"\0\1\0", user)]
    for count in (LIMITS.filters_max, INPUT_BYTES_MAX // 10):
        names = tuple(_string(b"+/%05x" % number) for number in range(count))
        for properties in (None, ()):
            found.append(Shape(0x82, b"\0\1", properties, b"", tuple(name + b"\0" for name in names)))
            found.append(Shape(0xA2, b"\0\1", properties, b"", names))
    return found


def mutated(shape: Shape, others: Sequence[Shape], random: Random) -> Shape:
    """The shape with something else in its items."""
    for _ in range(random.randrange(1, 4)):
        field = "properties" if shape.properties and random.random() < 0.6 else "items"
        items: list[bytes] = list(getattr(shape, field) or ())
        other = random.choice(others)
        choice = random.randrange(6)
        at = random.randrange(len(items)) if items else 0
        if choice == 0 and items:
            room = INPUT_BYTES_MAX - len(shape.frame())
            most = room // max(len(items[at]), 1)
            items[at:at] = [items[at]] * int(most ** random.random() if most > 0 else 0)
        elif choice == 1 and items:
            del items[at]
        elif choice == 2:
            items.insert(at, random.choice(other.items + (other.properties or ()) + USER))
        elif choice == 3 and items:
            items[at] = _damaged(items[at], random)
        elif choice == 4:
            items.insert(at, random.choice(OTHERS + USER))
        else:
            random.shuffle(items)
        changed = tuple(items)
        shape = replace(shape, properties=changed) if field == "properties" else replace(shape, items=changed)
    return shape


def _damaged(data: bytes, random: Random) -> bytes:
    out = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(out) + 1)
        out[at : at + random.randrange(2)] = random.randbytes(random.randrange(3))
    return bytes(out)


def shortest(act: Callable[[], object], allowed_s: float) -> float:
    """Processor seconds of `act`: the shortest of some runs, or of the first that is within the limit."""
    found = float("inf")
    for _ in range(REPEATS):
        begin_s = time.thread_time()
        act()
        found = min(found, time.thread_time() - begin_s)
        if not allowed_s < found < SURELY * allowed_s:
            break
    return found


def check(frame: bytes) -> None:
    """Raise Found if decoding of `frame` breaks a rule, in any version."""
    if (body := _body(frame)) is None:
        return
    blocks = len(frame) / BLOCK_BYTES
    for version in Version:
        for limits, block_s in ((LIMITS, BLOCK_S), (UNLIMITED, LINEAR_S)):
            allowed_s = BASE_S + block_s * blocks
            took_s = shortest(lambda: _decode(frame, body, version, limits), allowed_s)  # noqa: B023
            if took_s > allowed_s:
                words = f"{took_s * 1e3:.1f} ms to decode in {version.name}, allowed {allowed_s * 1e3:.1f}"
                raise Found(words, frame)


def _decode(frame: bytes, body: bytes, version: Version, limits: PacketLimits) -> None:
    try:
        decode_packet(frame[0], body, version, limits)
    except ProtocolError:
        pass
    except Exception as error:
        raise Found(f"{type(error).__name__}: {error}", frame) from error


class Handling:
    """A broker to which frames are sent."""

    def __init__(self) -> None:
        self._bench = Bench(engine=EngineLimits(packet_max_bytes=16 << 20))
        self._sent = 0

    def close(self) -> None:
        """End it."""
        self._bench.close()

    def check(self, frame: bytes) -> None:
        """Raise Found if the broker's thread takes too long at one go, before log-in or after it."""
        allowed_s = BASE_S + BLOCK_S * len(frame) / BLOCK_BYTES
        for version in (None, *Version):
            took_s = float("inf")
            for _ in range(REPEATS):
                took_s = min(took_s, self._longest(frame, version))
                if took_s <= allowed_s:
                    break
            else:
                where = "before CONNECT" if version is None else version.name
                words = f"{took_s * 1e3:.1f} ms between two polls, {where}; allowed {allowed_s * 1e3:.1f}"
                raise Found(words, frame)

    def _longest(self, frame: bytes, version: Version | None) -> float:
        bench, longest_s = self._bench, 0.0
        wire = bench.wire(version or Version.V5)
        if version is not None:
            self._sent += 1
            wire.send(Connect(f"c{self._sent % 10}", version=version, clean_start=self._sent % 3 > 0))
        bench.engine.feed(wire.handle, frame)
        while bench.engine.step(bench.now_ms, bench.now_ns) or bench.calls:
            begin_s = time.thread_time()
            bench.broker.handle(bench.engine.events())
            for _ in range(len(bench.calls)):
                bench.calls.popleft()()
            longest_s = max(longest_s, time.thread_time() - begin_s)
        bench.lose(wire)
        return longest_s


def fuzz(seed: int, goes_on: Callable[[int], bool], *, handled: bool = True) -> int:
    """Check seeds, and mutations of them for as long as goes_on(their number); how many.  Raises Found."""
    random, shapes = Random(seed), seeds()
    handling = Handling() if handled else None
    number, kept = 0, list(shapes)
    gc.disable()  # the broker's process collects seldom, and never what was there at its start
    try:
        while number < len(shapes) or goes_on(number):
            shape = shapes[number] if number < len(shapes) else mutated(random.choice(kept), shapes, random)
            frame = shape.frame()
            if number >= len(shapes) and random.random() < 0.3:
                frame = frame[:1] + _lengthed(_damaged(frame[2:], random))
            check(frame)
            if handling is not None and (number % HANDLED_SHARE == 0 or number < FULL_FIRST):
                handling.check(frame)
            if len(kept) < 4_096 and len(frame) < 4_096:
                kept.append(shape)
            number += 1
            if number % 1_000 == 0:
                gc.collect()
    finally:
        gc.enable()
        if handling is not None:
            handling.close()
    return number


def campaign(seconds: int) -> bool:
    """True if `seconds` of fuzzing found nothing.  The seed is another each time, and printed."""
    seed, end_s = time.time_ns(), time.monotonic() + seconds
    print(f"control: {seconds} s, seed {seed} ...", flush=True)
    try:
        count = fuzz(seed, lambda _: time.monotonic() < end_s)
    except Found as found:
        path = Path(f"crash-control-{sha256(found.frame).hexdigest()[:16]}")
        path.write_bytes(found.frame)
        print(f"control: FOUND {found}; the frame is in {path}")
        return False
    print(f"control: {count} packets, nothing found", flush=True)
    return True
