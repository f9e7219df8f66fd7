"""The packets of tests/golden/mqtt, as values: for the codec, and for whatever else reads MQTT."""

import re
from dataclasses import dataclass
from pathlib import Path

import edge.mqtt
from edge.mqtt import Packet, Version

GOLDEN = Path(__file__).parent.parent / "golden" / "mqtt"
VERSIONS = {"v311.txt": Version.V311, "v5.txt": Version.V5}

_TOKEN = re.compile(r"'([^']*)'|((?:[0-9a-f]{2})+)|\s+")


@dataclass(frozen=True)
class Vector:
    """`frame` with its fixed header; either `packet` or `statement` ("MQTT-3.1.0-2")."""

    name: str
    version: Version
    frame: bytes
    packet: Packet | None
    statement: str
    one_way: bool  # it encodes to other bytes

    def __str__(self) -> str:
        return f"{self.version.name}: {self.name}"


def vectors() -> list[Vector]:
    """All of them."""
    return [vector for name, version in VERSIONS.items() for vector in _read(GOLDEN / name, version)]


def _read(path: Path, version: Version) -> list[Vector]:
    found = []
    section = ""
    for block in path.read_text(encoding="utf-8").split("\n\n")[1:]:
        lines = block.strip().split("\n")
        if lines[0].startswith("## "):
            section = lines[0][3:]
            continue
        name, frame, (kind, verdict) = lines[0], lines[1], (lines[2][0], lines[2][2:])
        assert name.startswith("# "), block
        assert kind in "=<!", block
        found.append(
            Vector(
                name=f"{section.split(' 3.')[0]}: {name[2:]}",
                version=version,
                frame=_bytes(frame),
                packet=None if kind == "!" else _packet(verdict),
                statement=verdict if kind == "!" else "",
                one_way=kind == "<",
            )
        )
    return found


def _bytes(text: str) -> bytes:
    out = bytearray()
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        assert token, f"{text[position:]!r} is neither hexadecimal nor quoted"
        out += (token[1] or "").encode("ascii") + bytes.fromhex(token[2] or "")
        position = token.end()
    return bytes(out)


def _packet(expression: str) -> Packet:
    names = {name: getattr(edge.mqtt, name) for name in edge.mqtt.__all__}
    packet: Packet = eval(expression, {"__builtins__": {}}, names | {"V5": Version.V5})
    return packet
