"""The words that vectors are written in, as bytes to send and as patterns of what must come.

    0a1b          bytes                        (...)   a group behind its remaining length
    'text'        its UTF-8                    [...]   a group behind its length: a property set
    "text"        the same behind two bytes of length
    x*3           three times x                #p      the packet identifier that came as #p

Only in patterns: `..` any bytes up to the end of the group, `?2` any two bytes, `?s` any string with its
length; #p takes any identifier but 0 where it stands first.  The order of properties does not matter, but
for that of user properties; `..` among them allows others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

_TOKEN = re.compile(
    r"(?P<raw>'[^']*')|(?P<string>\"[^\"]*\")|(?P<open>[(\[])|(?P<close>[)\]])|(?P<rest>\.\.)"
    r"|\?(?P<any>\d+)|(?P<anystring>\?s)|#(?P<bound>\w+)|\*(?P<times>\d+)|(?P<hex>(?:[0-9a-f]{2})+)|\s+"
)
_CLOSING = {"(": ")", "[": "]"}

# Of each property what its value is: bytes of a fixed count, a variable byte integer, or strings.
_FIXED = {0x01: 1, 0x02: 4, 0x11: 4, 0x13: 2, 0x17: 1, 0x18: 4, 0x19: 1, 0x21: 2, 0x22: 2, 0x23: 2, 0x24: 1,
          0x25: 1, 0x27: 4, 0x28: 1, 0x29: 1, 0x2A: 1}  # fmt: skip
_VARIABLE = 0x0B
_STRINGS = {0x03: 1, 0x08: 1, 0x09: 1, 0x12: 1, 0x15: 1, 0x16: 1, 0x1A: 1, 0x1C: 1, 0x1F: 1, 0x26: 2}
_USER = 0x26


@dataclass(frozen=True)
class Rest:
    """Any bytes up to the end of the group."""


@dataclass(frozen=True)
class AnyString:
    """A string, whatever it says."""


@dataclass(frozen=True)
class Bound:
    """A packet identifier that the server chose."""

    name: str


@dataclass(frozen=True)
class Group:
    """Atoms after their length; `properties`: as a set."""

    properties: bool
    atoms: tuple[Atom, ...]


# A byte; None: any one byte; or one of the above.
Atom: TypeAlias = "int | Rest | AnyString | Bound | Group | None"
Bindings = dict[str, int]


def atoms_of(text: str) -> list[Atom]:
    """The atoms that `text` says.  Raises ValueError where it says nothing."""
    tokens = _tokens(text)
    return _group(tokens, "")


def _tokens(text: str) -> Iterator[re.Match[str]]:
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ValueError(f"{text[position:]!r} is neither hexadecimal nor quoted")
        position = token.end()
        if token.lastgroup:
            yield token


def _group(tokens: Iterator[re.Match[str]], end: str) -> list[Atom]:
    found: list[Atom] = []
    last: list[Atom] = []
    for token in tokens:
        kind = token.lastgroup
        assert kind is not None
        word = token[kind]
        if kind == "close":
            if word != end:
                raise ValueError(f"{word} closes nothing")
            return found
        if kind == "times":
            found += last * (int(word) - 1) if int(word) else []
            if int(word) == 0:
                del found[len(found) - len(last) :]
            continue
        if kind == "open":
            last = [Group(word == "[", tuple(_group(tokens, _CLOSING[word])))]
        else:
            last = _plain(kind, word)
        found += last
    if end:
        raise ValueError(f"{end} is missing")
    return found


def _plain(kind: str, word: str) -> list[Atom]:
    if kind == "raw":
        return list(word[1:-1].encode())
    if kind == "string":
        data = word[1:-1].encode()
        return [*len(data).to_bytes(2), *data]
    if kind == "hex":
        return list(bytes.fromhex(word))
    if kind == "any":
        return [None] * int(word)
    if kind == "bound":
        return [Bound(word)]
    return [AnyString() if kind == "anystring" else Rest()]


def bytes_of(atoms: list[Atom] | tuple[Atom, ...], bindings: Bindings) -> bytes:
    """Bytes to send."""
    out = bytearray()
    for atom in atoms:
        if isinstance(atom, int):
            out.append(atom)
        elif isinstance(atom, Bound):
            out += bindings[atom.name].to_bytes(2)
        elif isinstance(atom, Group):
            inner = bytes_of(atom.atoms, bindings)
            out += _integer(len(inner)) + inner
        else:
            raise ValueError(f"{atom} cannot be sent")
    return bytes(out)


def _integer(value: int) -> bytes:
    out = bytearray()
    while True:
        value, byte = value >> 7, value & 0x7F
        out.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(out)


def integer_at(data: bytes, at: int) -> tuple[int, int] | None:
    """(value, position behind it) of the variable byte integer at `at`; None: it does not end."""
    value = 0
    for count in range(4):
        if at + count >= len(data):
            return None
        value |= (data[at + count] & 0x7F) << 7 * count
        if not data[at + count] & 0x80:
            return value, at + count + 1
    return None


def matches(atoms: list[Atom] | tuple[Atom, ...], data: bytes, bindings: Bindings) -> bool:
    """True if `data` matches `atoms`; `bindings` gets identifiers, also after a difference."""
    at = 0
    for atom in atoms:
        if isinstance(atom, Rest):
            return True
        if isinstance(atom, Bound):
            value = int.from_bytes(data[at : at + 2])
            if len(data) < at + 2 or value == 0 or bindings.setdefault(atom.name, value) != value:
                return False
            at += 2
        elif isinstance(atom, AnyString):
            at += 2 + int.from_bytes(data[at : at + 2])
        elif isinstance(atom, Group):
            length = integer_at(data, at)
            if length is None or length[1] + length[0] > len(data):
                return False
            inner, at = data[length[1] : length[1] + length[0]], length[1] + length[0]
            same = _same_properties if atom.properties else matches
            if not same(atom.atoms, inner, bindings):
                return False
        else:
            if at >= len(data) or (atom is not None and data[at] != atom):
                return False
            at += 1
    return at == len(data)


def _same_properties(atoms: tuple[Atom, ...], data: bytes, bindings: Bindings) -> bool:
    more = any(isinstance(atom, Rest) for atom in atoms)
    wanted = _split([atom for atom in atoms if not isinstance(atom, Rest)])
    there = _split(list(data))
    if (
        wanted is None
        or there is None
        or len({one[0] for one in there if one[0] not in (_VARIABLE, _USER)})
        != (sum(one[0] not in (_VARIABLE, _USER) for one in there))
    ):
        return False
    users = [bytes_of(one, bindings) for one in wanted if one[0] == _USER]
    users_there = [bytes_of(one, bindings) for one in there if one[0] == _USER]
    if users != users_there[: len(users)] or (not more and len(users) != len(users_there)):
        return False
    left = [bytes_of(one, bindings) for one in there if one[0] != _USER]
    for one in wanted:
        if one[0] == _USER:
            continue
        found = next((other for other in left if matches(one, other, bindings)), None)
        if found is None:
            return False
        left.remove(found)
    return more or not left


def _split(atoms: list[Atom]) -> list[list[Atom]] | None:
    """One list for each property; None: they are no properties."""
    found = []
    at = 0
    while at < len(atoms):
        end = _property_end(atoms, at)
        if end is None or end > len(atoms):
            return None
        found.append(atoms[at:end])
        at = end
    return found


def _property_end(atoms: list[Atom], at: int) -> int | None:
    identifier = atoms[at]
    at += 1
    if not isinstance(identifier, int):
        return None
    if identifier == _VARIABLE:
        while at < len(atoms) and isinstance(byte := atoms[at], int) and byte & 0x80:
            at += 1
        return at + 1
    if identifier in _FIXED:
        return at + _FIXED[identifier]
    for _ in range(_STRINGS.get(identifier, 0)):
        if at < len(atoms) and isinstance(atoms[at], AnyString):
            at += 1
            continue
        length = bytes(byte for byte in atoms[at : at + 2] if isinstance(byte, int))
        if len(length) != 2:
            return None
        at += 2 + int.from_bytes(length)
    return at if identifier in _STRINGS else None
