"""Runs scenarios (vector_files.py) against a broker: over anything that is a Line.

That nothing comes is shown by round trips, not by waiting: PINGREQ on every other connection, so that what
they sent has been dealt with, then on the one that must be silent: twice, as the first answer may overtake
a PUBLISH that was caused by the same bytes.
"""

import re
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tests.support.vector_files import Scenario, Step
from tests.support.vector_tokens import Atom, Bindings, atoms_of, bytes_of, integer_at, matches

CONNECT, CONNACK, PUBACK, PUBCOMP, DISCONNECT, AUTH = 1, 2, 4, 7, 14, 15
PINGREQ, PINGRESP = b"\xc0\0", b"\xd0\0"
SHOWN_MAX = 120
LASTING_S = 3600
_BETWEEN = re.compile(r"""\s+[|&]\s+(?=(?:[^'"]|'[^']*'|"[^"]*")*$)""")


class Silence(Exception):
    """Nothing came, for longer than anything takes."""


class Disagreement(Exception):
    """The broker did not do what the scenario says."""


class Line(Protocol):
    """One connection, from the client's side."""

    def send(self, data: bytes) -> None:
        """Bytes to the broker; nothing happens if it has closed."""

    def receive(self) -> bytes:
        """More bytes; b"": the broker has closed.  Raises Silence."""

    def drop(self) -> None:
        """Break the connection; what the broker sent before it saw that can still be received."""

    def close(self) -> None:
        """Free it."""


class _Client:
    """A line, cut into packets."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.version = 4
        self.joined = False
        self.client_id = ""
        self.lasting = False
        self.ended = False
        self._rest = b""
        self._packets: deque[bytes] = deque()

    def send(self, data: bytes) -> None:
        """Send, and remember which version is spoken."""
        if len(data) > 8 and data[0] >> 4 == CONNECT and not self.joined:
            length = integer_at(data, 1)
            name = int.from_bytes(data[length[1] : length[1] + 2]) if length else 0
            level = length[1] + 2 + name if length else 0
            if level < len(data):
                self.version = 5 if data[level] == 5 else 4
        self.line.send(data)

    def packet(self) -> bytes:
        """The next one; b"" at the end.  Raises Silence."""
        return self._packets.popleft() if self._packets else self._next()

    def _next(self) -> bytes:
        while True:
            length = integer_at(self._rest, 1)
            if length is not None and len(self._rest) >= sum(length):
                end = sum(length)
                packet, self._rest = self._rest[:end], self._rest[end:]
                return self._whole(packet)
            more = b"" if self.ended else self.line.receive()
            if not more:
                self.ended = True
                return b""
            self._rest += more

    def _whole(self, packet: bytes) -> bytes:
        """MQTT 5 lets a packet end before a reason code 0 and empty properties: they are put back."""
        kind = packet[0] >> 4
        if self.version != 5 or not (PUBACK <= kind <= PUBCOMP or kind in (DISCONNECT, AUTH)):
            return packet
        full = 4 if kind <= PUBCOMP else 2
        return bytes((packet[0], full)) + packet[2:] + bytes(full - packet[1]) if packet[1] < full else packet

    def settle(self) -> None:
        """Everything sent so far was dealt with; what came meanwhile is kept."""
        if not self.joined or self.ended:
            return
        self.line.send(PINGREQ)
        while packet := self._next():
            if packet == PINGRESP:
                return
            self._packets.append(packet)

    def waiting(self) -> list[bytes]:
        """Received packets that the scenario has not checked."""
        return list(self._packets)


class _Run:
    def __init__(
        self,
        scenario: Scenario,
        own: str,
        dial: Callable[[], Line],
        later: Callable[[float], None],
        terse: bool,
    ) -> None:
        self.scenario = scenario
        self.own = own
        self.terse = terse
        self.bindings: Bindings = {}
        self.clients: dict[str, _Client] = {}
        self._dial = dial
        self._later = later

    def all(self) -> None:
        for step in self.scenario.steps:
            try:
                self._step(step)
            except Silence:
                raise Disagreement(
                    f"line {step.line}: {step.who} {step.verb} {step.rest}: nothing came"
                ) from None
            except Disagreement as error:
                raise Disagreement(f"line {step.line}: {step.who} {step.verb} {step.rest}: {error}") from None

    def client(self, name: str) -> _Client:
        if name not in self.clients:
            self.clients[name] = _Client(self._dial())
        return self.clients[name]

    def _step(self, step: Step) -> None:
        if step.verb == "later":
            for client in self.clients.values():
                client.settle()
            self._later(float(step.rest))
            return
        client, text = self.client(step.who), step.text(self.own)
        if step.verb == ">":
            client.send(bytes_of(atoms_of(text), self.bindings))
        elif step.verb == "<":
            self._expect(client, text)
        elif step.verb == "joins":
            self._join(step, client, text)
        elif step.verb == "closed":
            self._closed(client, text)
        elif step.verb == "refused" and self.terse:
            packet = client.packet()
            if packet and (packet[0] >> 4 != CONNACK or packet[3] == 0):
                raise Disagreement(f"got {_shown(packet)}")
            self._closed(client, "")
        elif step.verb == "refused":
            codes = "|".join(f"2002 00 {code}" for code in text.split("|"))
            codes5 = " | ".join(f"20 (00 {code} [..])" for code in text.split("|"))
            self._expect(client, codes5 if client.version == 5 else codes.replace("|", " | "))
            self._closed(client, "")
        elif step.verb == "silent":
            self._silent(client)
        else:
            client.line.drop()
            client.joined = False
            while client.packet():
                pass

    def _expect(self, client: _Client, text: str) -> None:
        patterns = [atoms_of(part) for part in _BETWEEN.split(text)]
        together = " & " in text
        while patterns:
            packet = client.packet()
            found = next((pattern for pattern in patterns if self._is(pattern, packet)), None)
            if found is None:
                raise Disagreement(f"got {_shown(packet)}")
            if not together:
                break
            patterns.remove(found)
        client.joined = client.joined or packet[0] >> 4 == CONNACK

    def _is(self, pattern: list[Atom], packet: bytes) -> bool:
        bindings = dict(self.bindings)
        if not matches(pattern, packet, bindings):
            return False
        self.bindings.update(bindings)
        return True

    def _join(self, step: Step, client: _Client, text: str) -> None:
        words = text.split(maxsplit=1)
        level, rest = int(words[0]), words[1] if len(words) > 1 else ""
        lasting, present = rest.startswith("lasting"), "present" in rest.split("[")[0]
        properties = rest.partition("[")[2].rpartition("]")[0]
        if lasting and not re.match(r"\s*11 ", properties):
            properties = f"11 {LASTING_S:08x} {properties}"
        protocol = "'MQIsdp'" if level == 3 else "'MQTT'"
        head = f"{protocol.replace(chr(39), chr(34))} {level:02x} {0 if lasting else 2:02x} 003c"
        own_properties = f"[{properties}]" if level == 5 else ""
        client.client_id = f"{self.own}{step.who[0]}"
        client.lasting = lasting
        client.send(bytes_of(atoms_of(f'10 ({head} {own_properties} "{client.client_id}")'), self.bindings))
        flags = f"{int(present):02x}"
        self._expect(client, f"20 ({flags} 00 [..])" if level == 5 else f"2002 {flags} 00")

    def _closed(self, client: _Client, codes: str) -> None:
        client.joined = False
        packet = client.packet()
        if packet and client.version == 5 and packet[0] == DISCONNECT << 4:
            if codes and f"{packet[2]:02x}" not in codes.split("|") and not self.terse:
                raise Disagreement(f"got {_shown(packet)}")
            packet = client.packet()
        elif codes and not self.terse:
            raise Disagreement(f"got {_shown(packet)}, not DISCONNECT")
        if packet:
            raise Disagreement(f"got {_shown(packet)}")

    def _silent(self, client: _Client) -> None:
        for other in [*(one for one in self.clients.values() if one is not client), client, client]:
            other.settle()
        if client.ended:
            raise Disagreement("the connection was closed")
        if packets := client.waiting():
            raise Disagreement(f"got {_shown(packets[0])}")

    def end(self) -> None:
        """Close every connection, and leave no session behind."""
        for client in self.clients.values():
            client.line.close()
        for client_id in {client.client_id for client in self.clients.values() if client.lasting}:
            line = self._dial()
            client = _Client(line)
            try:
                client.send(bytes_of(atoms_of(f'10 ("MQTT" 04 02 003c "{client_id}")'), {}))
                client.packet()
                line.send(b"\xe0\0")
                client.packet()
            finally:
                line.close()


def run(
    scenario: Scenario,
    own: str,
    dial: Callable[[], Line],
    later: Callable[[float], None],
    *,
    terse: bool = False,
) -> str:
    """Run a scenario; return the first difference, or "".

    `own`: four characters that no other run uses.  `terse`: it need not say why it closes, which MQTT 5
    leaves to it, or may say it otherwise.
    """
    one = _Run(scenario, own, dial, later, terse)
    try:
        one.all()
    except Disagreement as error:
        return str(error)
    finally:
        one.end()
    return ""


def _shown(packet: bytes) -> str:
    if not packet:
        return "the end of the connection"
    words = packet[:SHOWN_MAX].hex(" ")
    return words if len(packet) <= SHOWN_MAX else f"{words} ... ({len(packet)} bytes)"
