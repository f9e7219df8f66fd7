"""Windows: what is acknowledged, what is sent again, and in which order."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edge.mqtt import ProtocolError, PubAck, PubComp, Publish, PubRec, PubRel, ReasonCode, Version
from edge.mqtt.inflight import Completed, PacketIdentifiers, ReceiveWindow, SendWindow

OK = ReasonCode.SUCCESS


def admitted(window: SendWindow, publish: Publish) -> Publish:
    packet = window.admit(publish)
    assert packet is not None
    return packet


# ---- identifiers -----------------------------------------------------------------------------------


def test_an_identifier_is_reused_as_late_as_possible() -> None:
    identifiers = PacketIdentifiers(65_534)
    assert [identifiers.take() for _ in range(3)] == [65_534, 65_535, 1]
    identifiers.free(65_535)
    assert identifiers.take() == 2


def test_identifiers_in_use_are_skipped() -> None:
    identifiers = PacketIdentifiers(65_535)
    held = identifiers.take()
    for _ in range(65_534):
        taken = identifiers.take()
        assert taken is not None
        identifiers.free(taken)
    assert held == 65_535
    assert identifiers.take() == 1


def test_when_all_identifiers_are_in_use_there_is_none() -> None:
    identifiers = PacketIdentifiers()
    assert len({identifiers.take() for _ in range(65_535)}) == 65_535
    assert identifiers.take() is None
    identifiers.free(77)
    assert identifiers.take() == 77


@pytest.mark.parametrize("first", [0, 65_536])
def test_the_first_identifier_must_be_one(first: int) -> None:
    with pytest.raises(ValueError, match=r"not in 1\.\.65535"):
        PacketIdentifiers(first)


# ---- sending ---------------------------------------------------------------------------------------


def test_qos_1_is_settled_by_puback() -> None:
    window = SendWindow()
    packet = admitted(window, Publish("a", b"x", qos=1))
    assert packet == Publish("a", b"x", qos=1, packet_id=1)
    assert window.acknowledge(PubAck(1)) == Completed(1, OK)
    assert len(window) == 0
    assert len(window.identifiers) == 0


def test_qos_2_is_settled_by_pubrec_and_pubcomp() -> None:
    window = SendWindow()
    admitted(window, Publish("a", qos=2))
    assert window.acknowledge(PubRec(1)) == PubRel(1)
    assert len(window) == 1, "the identifier is still in use"
    assert window.acknowledge(PubRec(1)) == PubRel(1), "said twice, answered twice"
    assert window.acknowledge(PubComp(1)) == Completed(1, OK)
    assert len(window.identifiers) == 0


def test_a_pubcomp_that_does_not_know_the_identifier_settles_the_message_as_delivered() -> None:
    """The receiver owns the message since PUBREC, and its first PUBCOMP was lost with the connection."""
    window = SendWindow()
    packet_id = admitted(window, Publish("a", b"x", qos=2)).packet_id
    assert window.acknowledge(PubRec(packet_id), Version.V5) == PubRel(packet_id)
    assert window.resend() == [PubRel(packet_id)]
    unknown = PubComp(packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
    assert window.acknowledge(unknown, Version.V5) == Completed(packet_id, OK)


def test_a_full_window_says_so() -> None:
    window = SendWindow(2)
    admitted(window, Publish("a", qos=1))
    assert not window.full
    admitted(window, Publish("a", qos=1))
    assert window.full
    assert window.admit(Publish("a", qos=1)) is None
    window.acknowledge(PubAck(1))
    assert admitted(window, Publish("a", qos=1)).packet_id == 3


def test_a_refused_message_is_settled_and_not_sent_again() -> None:
    window = SendWindow()
    admitted(window, Publish("a", qos=1))
    admitted(window, Publish("a", qos=2))
    assert window.acknowledge(PubAck(1, ReasonCode.NOT_AUTHORIZED)) == Completed(1, ReasonCode.NOT_AUTHORIZED)
    assert window.acknowledge(PubRec(2, ReasonCode.QUOTA_EXCEEDED)) == Completed(2, ReasonCode.QUOTA_EXCEEDED)
    assert window.resend() == []


def test_unsettled_messages_are_sent_again_in_order_with_dup() -> None:
    window = SendWindow()
    for payload, qos in ((b"1", 1), (b"2", 2), (b"3", 1), (b"4", 2)):
        admitted(window, Publish("a", payload, qos=qos))
    window.acknowledge(PubAck(3))
    window.acknowledge(PubRec(2))
    assert window.resend() == [
        Publish("a", b"1", qos=1, dup=True, packet_id=1),
        Publish("a", b"4", qos=2, dup=True, packet_id=4),
        PubRel(2),
    ]


def test_when_the_session_is_lost_only_released_messages_are_given_up() -> None:
    window = SendWindow()
    for payload, qos in ((b"1", 1), (b"2", 2), (b"3", 2)):
        admitted(window, Publish("a", payload, qos=qos))
    window.acknowledge(PubRec(2))
    assert window.session_lost() == [2]
    assert window.resend() == [
        Publish("a", b"1", qos=1, dup=True, packet_id=1),
        Publish("a", b"3", qos=2, dup=True, packet_id=3),
    ]
    assert len(window.identifiers) == 2


def test_a_withdrawn_message_leaves_no_trace() -> None:
    window = SendWindow(1)
    admitted(window, Publish("a", qos=1))
    window.withdraw(1)
    assert (len(window), len(window.identifiers), window.full) == (0, 0, False)


def test_acknowledgements_of_the_unknown_change_nothing() -> None:
    window = SendWindow()
    assert window.acknowledge(PubAck(9)) is None
    assert window.acknowledge(PubComp(9)) is None
    assert window.acknowledge(PubRec(9)) == PubRel(9, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)


@pytest.mark.parametrize(
    ("qos", "packet"), [(1, PubRec(1)), (1, PubComp(1)), (2, PubAck(1)), (2, PubComp(1))]
)
def test_an_acknowledgement_of_the_other_qos_is_refused(qos: int, packet: PubAck | PubRec | PubComp) -> None:
    window = SendWindow()
    admitted(window, Publish("a", qos=qos))
    with pytest.raises(ProtocolError, match="waits for"):
        window.acknowledge(packet)
    assert len(window) == 1


# ---- receiving -------------------------------------------------------------------------------------


def test_a_message_is_acknowledged_when_it_is_done() -> None:
    window = ReceiveWindow()
    receipt = window.accept(Publish("a", qos=1, packet_id=5))
    assert receipt is not None
    assert window.acknowledgements() == []
    window.done(receipt)
    assert window.acknowledgements() == [PubAck(5)]
    assert window.acknowledgements() == []


def test_acknowledgements_keep_the_order_of_receipt() -> None:
    window = ReceiveWindow()
    first = window.accept(Publish("a", qos=1, packet_id=5))
    second = window.accept(Publish("a", qos=2, packet_id=6))
    third = window.accept(Publish("a", qos=1, packet_id=7))
    for receipt in (third, second):
        assert receipt is not None
        window.done(receipt)
    assert window.acknowledgements() == []
    assert first is not None
    window.done(first)
    assert window.acknowledgements() == [PubAck(5), PubRec(6), PubAck(7)]


def test_a_repeated_qos_2_message_is_acknowledged_again_and_not_handed_on() -> None:
    window = ReceiveWindow()
    message = Publish("a", qos=2, packet_id=5)
    receipt = window.accept(message)
    assert receipt is not None
    assert window.accept(message) is None
    window.done(receipt)
    assert window.acknowledgements() == [PubRec(5)], "while it is not done, the repetition adds nothing"
    assert window.accept(message) is None
    assert window.acknowledgements() == [PubRec(5)]
    assert window.release(PubRel(5)) == PubComp(5)
    assert window.accept(message) is not None, "after PUBREL the identifier means a new message"


def test_a_release_of_the_unknown_is_answered() -> None:
    assert ReceiveWindow().release(PubRel(5)) == PubComp(5, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)


def test_more_than_the_receive_maximum_is_refused() -> None:
    window = ReceiveWindow(2)
    window.accept(Publish("a", qos=1, packet_id=1))
    window.accept(Publish("a", qos=2, packet_id=2))
    with pytest.raises(ProtocolError) as refused:
        window.accept(Publish("a", qos=1, packet_id=3), Version.V5)
    assert refused.value.reason_code is ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


def test_unreleased_qos_2_messages_count_against_the_receive_maximum() -> None:
    window = ReceiveWindow(2)
    for packet_id in (1, 2):
        receipt = window.accept(Publish("a", qos=2, packet_id=packet_id))
        assert receipt is not None
        window.done(receipt)
    window.acknowledgements()
    with pytest.raises(ProtocolError):
        window.accept(Publish("a", qos=2, packet_id=3))


def test_a_new_connection_to_the_session_knows_qos_2_identifiers() -> None:
    window = ReceiveWindow()
    message = Publish("a", qos=2, packet_id=5)
    receipt = window.accept(message)
    assert receipt is not None
    window.reconnected(session_present=True)
    assert window.accept(message) is None
    assert window.acknowledgements() == [PubRec(5)]
    window.done(receipt)  # too late: changes nothing
    assert window.acknowledgements() == []
    window.reconnected(session_present=False)
    assert window.accept(message) is not None


class Exchange(RuleBasedStateMachine):
    """A sender and a receiver over a wire that breaks: QoS 1 arrives at least once, QoS 2 exactly once."""

    @initialize(limit=st.integers(1, 5))
    def begin(self, limit: int) -> None:
        self.sender, self.receiver = SendWindow(limit), ReceiveWindow(limit)
        self.there: list[Publish | PubRel] = []  # on the wire to the receiver
        self.back: list[PubAck | PubRec | PubComp] = []
        self.sent: dict[bytes, int] = {}
        self.settled = 0
        self.delivered: dict[bytes, int] = {}

    @rule(qos=st.integers(1, 2))
    def publish(self, qos: int) -> None:
        payload = str(len(self.sent)).encode()
        packet = self.sender.admit(Publish("a", payload, qos=qos))
        if packet is not None:
            self.there.append(packet)
            self.sent[payload] = qos

    @precondition(lambda self: self.there)
    @rule()
    def receive(self) -> None:
        packet = self.there.pop(0)
        if isinstance(packet, PubRel):
            self.back.append(self.receiver.release(packet))
            return
        receipt = self.receiver.accept(packet)
        if receipt is not None:
            payload = bytes(packet.payload)
            self.delivered[payload] = self.delivered.get(payload, 0) + 1
            self.receiver.done(receipt)
        self.back += self.receiver.acknowledgements()

    @precondition(lambda self: self.back)
    @rule()
    def acknowledge(self) -> None:
        answer = self.sender.acknowledge(self.back.pop(0))
        if isinstance(answer, PubRel):
            self.there.append(answer)
        elif answer is not None:
            self.settled += 1

    @rule()
    def break_the_wire(self) -> None:
        self.receiver.reconnected(session_present=True)
        self.back.clear()
        self.there = list(self.sender.resend())

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        if not hasattr(self, "sent"):
            return
        assert len(self.sender) + self.settled == len(self.sent)
        assert len(self.sender) <= self.sender.limit
        for payload, count in self.delivered.items():
            assert count == 1 or self.sent[payload] == 1, "QoS 2 was handed on twice"

    def teardown(self) -> None:
        while getattr(self, "there", None) or getattr(self, "back", None):
            if self.there:
                self.receive()
            else:
                self.acknowledge()
        if hasattr(self, "sent"):
            assert set(self.delivered) == set(self.sent)
            assert len(self.sender) == 0


TestExchange = Exchange.TestCase
TestExchange.settings = settings(max_examples=100, stateful_step_count=40)
