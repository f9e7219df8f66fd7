"""Messages in flight: the state of QoS 1 and 2 that outlives a connection.

    PacketIdentifiers   the identifiers 1..65535 that this side uses
    SendWindow          messages sent at QoS 1 and 2, until the last acknowledgement; resent after a reconnect
    ReceiveWindow       messages received at QoS 1 and 2: acknowledged in order, QoS 2 delivered once

One of each for each session (client identifier) and side. A Connection ends with its socket, these do not.
Nothing here waits: a full window is reported, and the caller decides.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct
from msgspec.structs import replace

from edge.mqtt.errors import ProtocolError, Rule, Version
from edge.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from edge.mqtt.reason_codes import ReasonCode

IDENTIFIER_MAX = 65_535


class PacketIdentifiers:
    """Returns unused identifiers in turn, so that each is reused as late as possible.

    A client that starts with a session kept by the server should begin at a random one. The server may still
    hold QoS 2 identifiers of the client's earlier run, and would treat a new message with one as a
    repetition.
    """

    def __init__(self, first: int = 1) -> None:
        if not 1 <= first <= IDENTIFIER_MAX:
            raise ValueError(f"first packet identifier {first} is not in 1..{IDENTIFIER_MAX}")
        self._next = first
        self._used: set[int] = set()

    def __len__(self) -> int:
        """Number of identifiers in use."""
        return len(self._used)

    def take(self) -> int | None:
        """An unused identifier [MQTT-2.3.1-2], or None if all are in use."""
        if len(self._used) == IDENTIFIER_MAX:
            return None
        while self._next in self._used:
            self._next = self._next % IDENTIFIER_MAX + 1
        taken = self._next
        self._used.add(taken)
        self._next = taken % IDENTIFIER_MAX + 1
        return taken

    def free(self, packet_id: int) -> None:
        """Release an identifier that is in use."""
        self._used.remove(packet_id)


class Completed(Struct, frozen=True):
    """The end of an exchange: the receiver has the message, or (MQTT 5, a failure) refused it."""

    packet_id: int
    reason_code: ReasonCode


class SendWindow:
    """Messages sent and not yet acknowledged, at most `limit` of them (the receiver's Receive Maximum).

    Payloads are stored as given, while they may have to be sent again.
    """

    def __init__(self, limit: int = 100, identifiers: PacketIdentifiers | None = None) -> None:
        if not 1 <= limit <= IDENTIFIER_MAX:
            raise ValueError(f"window of {limit} messages is not in 1..{IDENTIFIER_MAX}")
        self.limit = limit
        self.identifiers = identifiers if identifiers is not None else PacketIdentifiers()
        self._unsettled: dict[int, Publish | PubRel] = {}  # as sent; PubRel: PUBREC was received

    def __len__(self) -> int:
        """Number of messages in flight. More than `limit` if a reconnect has lowered that."""
        return len(self._unsettled)

    @property
    def full(self) -> bool:
        """True if admit() would return None."""
        return len(self._unsettled) >= self.limit or len(self.identifiers) == IDENTIFIER_MAX

    def admit(self, publish: Publish) -> Publish | None:
        """Give `publish`, QoS 1 or 2, an identifier; it must be sent now. None if the window is full."""
        packet_id = None if self.full else self.identifiers.take()
        if packet_id is None:
            return None
        admitted = replace(publish, packet_id=packet_id, dup=False)
        self._unsettled[packet_id] = admitted
        return admitted

    def acknowledge(
        self, packet: PubAck | PubRec | PubComp, version: Version = Version.V311
    ) -> Completed | PubRel | None:
        """Process an acknowledgement: the message is Completed, or PubRel must be sent, or nothing.

        Nothing: the identifier is not in flight, for example from before a restart of this side. Raises
        ProtocolError for an acknowledgement of the other QoS.
        """
        waiting = self._unsettled.get(packet.packet_id)
        if waiting is None:
            missing = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND  # so that the peer can end its exchange
            return PubRel(packet.packet_id, missing) if isinstance(packet, PubRec) else None
        if isinstance(packet, PubRec) and isinstance(waiting, PubRel):
            return waiting  # repeated: the first PUBREL may not have arrived
        expected: type = PubComp if isinstance(waiting, PubRel) else PubAck if waiting.qos == 1 else PubRec
        if type(packet) is not expected:
            raise ProtocolError(
                Rule.ACKNOWLEDGEMENT_FITS,
                f"{type(packet).__name__} for packet {packet.packet_id}, which waits for {expected.__name__}",
                version,
            )
        del self._unsettled[packet.packet_id]
        if isinstance(packet, PubRec) and not packet.reason_code.failed:
            release = PubRel(packet.packet_id)
            self._unsettled[packet.packet_id] = release  # at the end: in the order of PUBREC [MQTT-4.6.0-4]
            return release
        self.identifiers.free(packet.packet_id)
        # The receiver owns the message since PUBREC. A PUBCOMP that does not know the identifier answers a
        # PUBREL that was sent again after a reconnect: the receiver had ended the exchange before.
        reason = ReasonCode.SUCCESS if isinstance(packet, PubComp) else packet.reason_code
        return Completed(packet.packet_id, reason)

    def resend(self) -> list[Publish | PubRel]:
        """All unsettled packets, in order, with DUP: for a new connection to the session [MQTT-4.4.0-1]."""
        return [
            replace(one, dup=True) if isinstance(one, Publish) else one for one in self._unsettled.values()
        ]

    def withdraw(self, packet_id: int) -> None:
        """Remove an admitted message as if it had never been admitted."""
        del self._unsettled[packet_id]
        self.identifiers.free(packet_id)

    def session_lost(self) -> list[int]:
        """Remove the exchanges that cannot continue after the receiver has lost the session; resend() the
        rest.

        Returns the identifiers of QoS 2 messages after PUBREC, whose delivery is unknown.
        """
        unknown = [packet_id for packet_id, one in self._unsettled.items() if isinstance(one, PubRel)]
        for packet_id in unknown:
            self.withdraw(packet_id)
        return unknown


class Receipt:
    """Receipt of a message, for done() when this side owns the message."""

    __slots__ = ("_done", "packet_id", "qos")

    def __init__(self, packet_id: int, qos: int, *, done: bool = False) -> None:
        self.packet_id = packet_id
        self.qos = qos
        self._done = done


class ReceiveWindow:
    """Messages received and not yet acknowledged, at most `limit` of them (this side's Receive Maximum).

    Acknowledgements are sent in the order of receipt [MQTT-4.6.0-2]: one that is not done delays those behind
    it.
    """

    def __init__(self, limit: int = IDENTIFIER_MAX) -> None:
        if not 1 <= limit <= IDENTIFIER_MAX:
            raise ValueError(f"window of {limit} messages is not in 1..{IDENTIFIER_MAX}")
        self.limit = limit
        self._unacknowledged: deque[Receipt] = deque()
        self._unreleased: set[int] = set()  # QoS 2: PUBLISH received, PUBREL not

    def __len__(self) -> int:
        """Number of messages that the peer may count as in flight."""
        unsent = sum(receipt.qos == 1 for receipt in self._unacknowledged)
        return unsent + len(self._unreleased)

    def accept(self, publish: Publish, version: Version = Version.V311) -> Receipt | None:
        """A receipt for a new message, QoS 1 or 2; None for a repetition at QoS 2, which must not be
        delivered.

        Raises ProtocolError when the peer has sent more than allowed.
        """
        if publish.qos == 2 and publish.packet_id in self._unreleased:
            if all(receipt.packet_id != publish.packet_id for receipt in self._unacknowledged):
                self._unacknowledged.append(Receipt(publish.packet_id, 2, done=True))
            return None
        if len(self._unacknowledged) >= self.limit or len(self._unreleased) >= self.limit:
            raise ProtocolError(
                Rule.RECEIVE_MAXIMUM,
                f"more than {self.limit} messages at QoS 1 and 2 without waiting for their acknowledgement",
                version,
            )
        receipt = Receipt(publish.packet_id, publish.qos)
        self._unacknowledged.append(receipt)
        if publish.qos == 2:
            self._unreleased.add(publish.packet_id)
        return receipt

    def done(self, receipt: Receipt) -> None:
        """Report that this side owns the message. A receipt of an earlier connection has no effect."""
        receipt._done = True

    def acknowledgements(self) -> list[PubAck | PubRec]:
        """Acknowledgements that may be sent now, in order; each is returned once."""
        ready: list[PubAck | PubRec] = []
        while self._unacknowledged and self._unacknowledged[0]._done:
            receipt = self._unacknowledged.popleft()
            ready.append(PubAck(receipt.packet_id) if receipt.qos == 1 else PubRec(receipt.packet_id))
        return ready

    def release(self, packet: PubRel) -> PubComp:
        """The answer to a PUBREL; afterwards its identifier may belong to a new message."""
        if packet.packet_id not in self._unreleased:
            return PubComp(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
        self._unreleased.remove(packet.packet_id)
        return PubComp(packet.packet_id)

    def reconnected(self, *, session_present: bool) -> None:
        """Begin a new connection: unacknowledged messages come again, if the peer kept the session.

        QoS 2 identifiers stay known in a kept session: those messages were delivered already.
        """
        self._unacknowledged.clear()
        if not session_present:
            self._unreleased.clear()
