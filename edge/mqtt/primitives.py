"""Primitive types of the wire format: numbers, strings and lengths. Reads and writes no packets.

    byte, two-byte and four-byte integers   big-endian
    variable byte integer                   1..4 bytes of 7 bits, lowest first; bit 7: one more follows
    string                                  two-byte length, UTF-8 without U+0000 and surrogates
    binary data                             two-byte length, bytes

Reading never goes beyond the end of its input: every step checks first and raises ProtocolError.
"""

from __future__ import annotations

from typing import NamedTuple

from edge.mqtt.errors import ProtocolError, Rule, Version

Buffer = bytes | bytearray | memoryview

VARIABLE_INTEGER_MAX = 268_435_455  # four times 7 bits
STRING_MAX_BYTES = 65_535


class PacketLimits(NamedTuple):
    """Largest counts in one received packet.  Decoding stops at the first element above a limit."""

    user_properties_max: int  # in one property set; a CONNECT with a will has two sets
    filters_max: int  # in one SUBSCRIBE or UNSUBSCRIBE


UNLIMITED = PacketLimits(VARIABLE_INTEGER_MAX, VARIABLE_INTEGER_MAX)  # no packet has room for more


class Body:
    """A cursor over the part of one packet after the fixed header.

    `rule` is the rule that a packet of the wrong length breaks.
    """

    __slots__ = ("_data", "_end", "_position", "limits", "rule", "version")

    def __init__(
        self,
        data: Buffer,
        version: Version,
        rule: Rule = Rule.LENGTH_FITS,
        limits: PacketLimits = UNLIMITED,
    ) -> None:
        self._data = data
        self._position = 0
        self._end = len(data)
        self.version = version
        self.rule = rule
        self.limits = limits

    def __len__(self) -> int:
        """Number of unread bytes."""
        return self._end - self._position

    def peek(self, length: int) -> bytes:
        """A copy of the next `length` bytes, or of fewer if the body ends before; they stay unread."""
        return bytes(self._data[self._position : min(self._position + length, self._end)])

    def skip(self, length: int) -> None:
        """Skip bytes that were examined already."""
        self._take(length)

    def byte(self) -> int:
        """Read 0..255."""
        position = self._take(1)
        return self._data[position]

    def uint16(self) -> int:
        """Read 0..65535."""
        position = self._take(2)
        return self._data[position] << 8 | self._data[position + 1]

    def uint32(self) -> int:
        """Read 0..4294967295."""
        position = self._take(4)
        return int.from_bytes(self._data[position : position + 4])

    def variable_integer(self) -> int:
        """Read 0..268435455, in the shortest form. MQTT 5 only: older versions have none in their body."""
        if self._position < self._end and (byte := self._data[self._position]) < 0x80:
            self._position += 1
            return byte
        decoded = decode_variable_integer(self._data, self._position, self._end, self.version)
        if decoded is None:
            raise ProtocolError(self.rule, "the packet ends inside a variable byte integer", self.version)
        value, size = decoded
        if size > variable_integer_bytes(value):
            raise ProtocolError(
                Rule.VARIABLE_INTEGER_IS_SHORTEST, f"{value} takes {size} bytes", self.version
            )
        self._position += size
        return value

    def string(self) -> str:
        """Read UTF-8, 0..65535 bytes; U+FEFF is a character like any other [MQTT-1.5.3-3]."""
        data, begin = self._data, self._position + 2
        if begin > self._end:
            self._take(2)  # raises, with the number of missing bytes
        end = begin + (data[begin - 2] << 8 | data[begin - 1])
        if end > self._end:
            self._take(end - begin + 2)
        self._position = end
        try:
            text = str(data[begin:end], "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(
                Rule.STRING_IS_UTF8, f"no UTF-8 string: {error.reason}", self.version
            ) from None
        if "\0" in text:
            raise ProtocolError(Rule.STRING_HAS_NO_NUL, "U+0000 in a string", self.version)
        return text

    def binary(self) -> bytes:
        """Read a copy of 0..65535 bytes."""
        length = self.uint16()
        position = self._take(length)
        return bytes(self._data[position : position + length])

    def part(self, length: int) -> Body:
        """A cursor over the next `length` bytes, which count as read here."""
        position = self._take(length)
        part = Body(self._data, self.version, self.rule, self.limits)
        part._position, part._end = position, position + length
        return part

    def rest(self) -> memoryview:
        """All unread bytes, as a view of the input."""
        view = memoryview(self._data)[self._position : self._end]
        self._position = self._end
        return view

    def finish(self) -> None:
        """Check that everything was read."""
        if len(self):
            raise ProtocolError(self.rule, f"{_bytes(len(self))} after the last field", self.version)

    def _take(self, length: int) -> int:
        position = self._position
        if length > self._end - position:
            missing = length - (self._end - position)
            raise ProtocolError(self.rule, f"the packet ends {_bytes(missing)} too early", self.version)
        self._position = position + length
        return position


def decode_variable_integer(
    data: Buffer, position: int, end: int, version: Version = Version.V311
) -> tuple[int, int] | None:
    """(value, size in bytes) of the variable byte integer at `position`; None if it continues beyond `end`.

    Raises ProtocolError if a fifth byte would follow. Accepts forms that are not the shortest.
    """
    value = 0
    for size in range(1, 5):
        if position + size > end:
            return None
        byte = data[position + size - 1]
        value |= (byte & 0x7F) << 7 * (size - 1)
        if byte < 0x80:
            return value, size
    raise ProtocolError(Rule.VARIABLE_INTEGER_ENDS, "a variable byte integer has at most four bytes", version)


def variable_integer_bytes(value: int) -> int:
    """Size of `value` in bytes: 1..4."""
    return 1 if value < 0x80 else 2 if value < 0x4000 else 3 if value < 0x20_0000 else 4


def encode_variable_integer(value: int, version: Version = Version.V311) -> bytes:
    """Encode in 1..4 bytes, the shortest form."""
    if not 0 <= value <= VARIABLE_INTEGER_MAX:
        raise ProtocolError(
            Rule.VARIABLE_INTEGER_ENDS, f"{value} is not in 0..{VARIABLE_INTEGER_MAX}", version
        )
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_uint16(value: int, field: str, version: Version) -> bytes:
    """Encode in two bytes; `field` is the field's name, for the error."""
    if not 0 <= value <= 0xFFFF:
        raise ProtocolError(Rule.VALUE_IS_IN_RANGE, f"{field} {value} is not in 0..65535", version)
    return value.to_bytes(2)


def encode_uint32(value: int, field: str, version: Version) -> bytes:
    """Encode in four bytes."""
    if not 0 <= value <= 0xFFFF_FFFF:
        raise ProtocolError(Rule.VALUE_IS_IN_RANGE, f"{field} {value} is not in 0..4294967295", version)
    return value.to_bytes(4)


def encode_string(text: str, version: Version) -> bytes:
    """Encode as length and UTF-8."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(
            Rule.STRING_IS_UTF8, f"no UTF-8 for {text[:40]!a}: {error.reason}", version
        ) from None
    if "\0" in text:
        raise ProtocolError(Rule.STRING_HAS_NO_NUL, f"U+0000 in {text[:40]!a}", version)
    return encode_binary(data, version)


def encode_binary(data: Buffer, version: Version) -> bytes:
    """Encode as length and bytes."""
    if len(data) > STRING_MAX_BYTES:
        raise ProtocolError(
            Rule.STRING_FITS,
            f"{len(data)} bytes exceed the {STRING_MAX_BYTES} of a string or binary field",
            version,
        )
    return len(data).to_bytes(2) + data


def _bytes(count: int) -> str:
    return f"{count} byte{'s' * (count != 1)}"
