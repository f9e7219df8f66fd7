"""PUBLISH of MQTT 5 and its acknowledgements: what may be sent, what is stored of it, what is answered."""

from typing import Any

import pytest
from msgspec.structs import replace

from edge.auth.interfaces import ClientInfo
from edge.broker.dispatcher import BrokerLimits
from edge.broker.router import TopicLimits
from edge.config.schema import Durability
from edge.engine.engine import EngineLimits
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    Subscribe,
    Subscription,
    Version,
    encode,
)
from edge.mqtt.primitives import encode_string, encode_variable_integer
from ringbuf import FLAG_EXPIRY, FLAG_PROPERTIES, FLAG_RETAIN
from tests.support.mqtt_bench import Bench, Wire
from tests.support.mqtt_served import served
from tests.support.mqtt_socket import RawClient
from tests.support.rules import AnyTopic

V5 = Version.V5
UNHEARD = ReasonCode.NO_MATCHING_SUBSCRIBERS


def client_of(bench: Bench, client_id: str = "c", **fields: Any) -> Wire:
    """An MQTT 5 client that was accepted."""
    wire = bench.wire(V5)
    wire.send(Connect(client_id, version=V5, **fields))
    (answer,) = wire.received()
    assert isinstance(answer, ConnAck)
    assert not answer.reason_code.failed
    return wire


def string(text: str) -> bytes:
    return encode_string(text, V5)


def publish(
    section: bytes, *, topic: str = "t", payload: bytes = b"x", qos: int = 0, identifier: int = 1
) -> bytes:
    """A PUBLISH with these properties, whatever they are."""
    body = string(topic) + (identifier.to_bytes(2) if qos else b"")
    body += encode_variable_integer(len(section), V5) + section + payload
    return bytes((0x30 | qos << 1,)) + encode_variable_integer(len(body), V5) + body


def stored(bench: Bench) -> list[tuple[str, bytes, bytes]]:
    """(topic, properties without their length, payload) of every record."""
    reader = bench.partition.ring.reader(start="oldest")
    found = []
    while (record := reader.poll()) is not None:
        properties = record.properties
        assert bool(properties) == bool(record.flags & FLAG_PROPERTIES)
        assert (properties[1:2] == b"\2") == bool(record.flags & FLAG_EXPIRY)
        if properties:
            assert properties[0] == len(properties) - 1 < 128
        found.append((record.key.decode(), properties[1:], record.bytes()))
    del record
    reader.close()
    return found


FORMAT, EXPIRY, ALIAS = b"\1\1", b"\2\0\0\0\x3c", b"\x23\0\1"
TYPE, RESPONSE = b"\3" + string("text/plain"), b"\x08" + string("answers/1")
DATA, USER = b"\x09\0\2\0\xff", b"\x26" + string("k") + string("v")


@pytest.mark.parametrize(
    ("section", "kept"),
    [
        (b"", b""),
        (FORMAT, FORMAT),
        (EXPIRY, EXPIRY),
        (EXPIRY + TYPE, EXPIRY + TYPE),
        (ALIAS, b""),
        (ALIAS + EXPIRY, EXPIRY),
        (EXPIRY + ALIAS, EXPIRY),
        (FORMAT + EXPIRY, EXPIRY + FORMAT),
        (USER + ALIAS + USER, USER + USER),
        (USER + FORMAT + ALIAS + DATA + EXPIRY + RESPONSE, EXPIRY + USER + FORMAT + DATA + RESPONSE),
        (
            TYPE + EXPIRY + RESPONSE + DATA + USER + ALIAS + USER,
            EXPIRY + TYPE + RESPONSE + DATA + USER + USER,
        ),
    ],
)
def test_properties_are_stored_with_the_expiry_in_front_and_without_the_alias(
    section: bytes, kept: bytes
) -> None:
    with Bench() as bench:
        client = client_of(bench)
        client.raw(publish(section) + publish(section))  # the second finds its topic known
        assert stored(bench) == [("t", kept, b"x")] * 2
        assert client.is_open


def test_a_retained_message_keeps_its_properties() -> None:
    with Bench() as bench:
        client = client_of(bench)
        properties = Properties(content_type="a", message_expiry_interval_s=60, user=(("k", "v"),))
        aliased = replace(properties, topic_alias=1)
        client.send(Publish("t", b"x", retain=True, properties=aliased))
        client.send(Subscribe(1, (Subscription("t"),)))
        _, published = client.received()
        assert published == Publish("t", b"x", retain=True, properties=properties)


MALFORMED, PROTOCOL, ALIAS_INVALID = (
    ReasonCode.MALFORMED_PACKET,
    ReasonCode.PROTOCOL_ERROR,
    ReasonCode.TOPIC_ALIAS_INVALID,
)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (publish(b"\x7f\0"), MALFORMED),
        (publish(b"\x11\0\0\0\1"), MALFORMED),
        (publish(b"\x80\1"), MALFORMED),
        (publish(b"\1"), MALFORMED),
        (publish(b"\2\0\0\0"), MALFORMED),
        (publish(b"\x23\0"), MALFORMED),
        (publish(b"\3\0\2a"), MALFORMED),
        (publish(b"\3\0"), MALFORMED),
        (publish(b"\3\0\1\xff"), MALFORMED),
        (publish(b"\3\0\2\xc0\x80"), MALFORMED),
        (publish(b"\3\0\3\xed\xa0\x80"), MALFORMED),
        (publish(b"\3\0\1\0"), MALFORMED),
        (publish(b"\x26\0\1a\0\1"), MALFORMED),
        (publish(b"\x26\0\1a\0\1\xff"), MALFORMED),
        (publish(b"\x0b\xff\xff\xff\xff\1"), MALFORMED),
        (publish(b"\x0b\x81\0"), MALFORMED),
        (bytes.fromhex("30 04 0001 74 05"), MALFORMED),
        (bytes.fromhex("30 05 0001 74 80 00"), MALFORMED),
        (bytes.fromhex("30 03 0001 74"), MALFORMED),
        (bytes.fromhex("30 84 00 0001 74 00"), MALFORMED),
        (bytes.fromhex("36 06 0001 74 0001 00"), MALFORMED),
        (bytes.fromhex("38 04 0001 74 00"), MALFORMED),
        (bytes.fromhex("32 06 0001 74 0000 00"), PROTOCOL),
        (bytes.fromhex("30 04 0001 ff 00"), MALFORMED),
        (bytes.fromhex("30 06 0001 ff 02 0102"), MALFORMED),
        (bytes.fromhex("c0 01 00"), MALFORMED),
        (bytes.fromhex("c1 00"), MALFORMED),
        (bytes.fromhex("f1 00"), MALFORMED),
        (publish(b"\1\2"), PROTOCOL),
        (publish(FORMAT + FORMAT), PROTOCOL),
        (publish(EXPIRY + TYPE + EXPIRY), PROTOCOL),
        (publish(ALIAS + ALIAS), PROTOCOL),
        (publish(TYPE + TYPE), PROTOCOL),
        (publish(RESPONSE + RESPONSE), PROTOCOL),
        (publish(DATA + DATA), PROTOCOL),
        (publish(b"\x08" + string("a/+")), PROTOCOL),
        (publish(b"\x08" + string("#")), PROTOCOL),
        (publish(b"\x0b\1"), PROTOCOL),
        (publish(b"\x0b\0"), PROTOCOL),
        (publish(b"", topic=""), PROTOCOL),
        (publish(ALIAS, topic=""), PROTOCOL),
        (publish(b"\x23\0\0"), ALIAS_INVALID),
        (publish(b"\x23\0\x41"), ALIAS_INVALID),
        (publish(b"\x23\xff\xff", topic=""), ALIAS_INVALID),
        (publish(b"", topic="a/+"), ReasonCode.MALFORMED_PACKET),
        (bytes.fromhex("40 02 0000"), MALFORMED),
        (bytes.fromhex("40 01 00"), MALFORMED),
        (bytes.fromhex("42 02 0001"), MALFORMED),
        (bytes.fromhex("60 02 0001"), MALFORMED),
        (bytes.fromhex("40 04 0001 00 01"), MALFORMED),
        (bytes.fromhex("40 05 0001 00 00 00"), MALFORMED),
        (bytes.fromhex("40 06 0001 00 02 1f00"), MALFORMED),
        (bytes.fromhex("40 08 0001 00 04 1f0001ff"), MALFORMED),
        (bytes.fromhex("40 06 0001 00 02 0101"), MALFORMED),
        (bytes.fromhex("40 03 0001 92"), PROTOCOL),
        (bytes.fromhex("62 03 0001 10"), PROTOCOL),
        (bytes.fromhex("70 03 0001 80"), PROTOCOL),
        (bytes.fromhex("40 0c 0001 00 08 1f000161 1f000161"), PROTOCOL),
    ],
)  # fmt: skip
def test_a_client_that_breaks_a_rule_is_told_which_before_the_connection_ends(
    data: bytes, reason: ReasonCode
) -> None:
    with Bench() as bench:
        client = client_of(bench)
        client.raw(data)
        (last_words,) = client.received()
        assert isinstance(last_words, Disconnect)
        assert last_words.reason_code is reason
        assert not client.is_open
        assert stored(bench) == []


def test_a_packet_that_is_too_long_is_refused_by_its_header() -> None:
    with Bench(engine=EngineLimits(packet_max_bytes=100)) as bench:
        client = client_of(bench)
        client.raw(bytes.fromhex("30 64"))
        assert client.received() == [Disconnect(ReasonCode.PACKET_TOO_LARGE)]
        assert bench.stats.closed()["too large"] == 1


def test_who_says_nothing_for_too_long_is_told_so() -> None:
    with Bench() as bench:
        client = client_of(bench, keep_alive_s=10)
        bench.settle(14_000)
        assert client.is_open
        bench.settle(2_000)
        assert client.received() == [Disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)]


def test_a_stranger_is_told_nothing() -> None:
    with Bench() as bench:
        wire = bench.wire(V5)
        wire.raw(publish(b""))
        assert not wire.is_open
        assert wire.bytes_received() == b""


def test_the_last_word_reaches_the_socket_before_it_is_closed() -> None:
    with served() as there, RawClient(there.port) as client:
        hello = encode(Connect("c", version=V5), V5)
        client.socket.sendall(hello + publish(b"") + publish(b"\x23\0\0") + publish(b""))
        heard = b""
        while more := client.socket.recv(1000):
            heard += more
        assert heard.endswith(bytes.fromhex("e00194"))
        assert there.records() == [("t", b"x")]


def test_golden_bytes_of_a_publish_become_golden_bytes_of_a_record() -> None:
    received = bytes.fromhex(
        "3d 30 0005 612f622f63 0007 1f"  # DUP, QoS 2, RETAIN; "a/b/c", identifier 7, 31 bytes of properties
        "26 0001 6b 0001 76"  # user property k = v
        "23 0002"  # topic alias 2
        "01 01"  # payload format: UTF-8
        "02 00000e10"  # message expiry: 3600 s
        "03 0001 74"  # content type
        "08 0001 72"  # response topic
        "09 0003 000102"  # correlation data
        "0000 c3bc c3bc 00"  # payload
    )
    with Bench() as bench:
        client = client_of(bench)
        client.raw(received)
        assert client.bytes_received() == bytes.fromhex("50 02 0007")
        reader = bench.partition.ring.reader(start="oldest")
        record = reader.poll()
        assert record is not None
        assert record.properties == bytes.fromhex(
            "1c 02 00000e10 26 0001 6b 0001 76 01 01 03 0001 74 08 0001 72 09 0003 000102"
        )
        assert record.flags == 2 | FLAG_RETAIN | FLAG_PROPERTIES | FLAG_EXPIRY
        assert record.bytes() == bytes.fromhex("0000 c3bc c3bc 00")
        del record
        reader.close()


# ---- topic aliases ----


def aliased(topic: str, alias: int, payload: bytes = b"", **fields: Any) -> Publish:
    return Publish(topic, payload, properties=Properties(topic_alias=alias), **fields)


def test_an_alias_stands_for_the_topic_it_was_last_given_with() -> None:
    with Bench() as bench:
        client = client_of(bench)
        client.send(aliased("a", 1, b"1"), aliased("b", 2, b"2"), aliased("", 1, b"3"), aliased("", 2, b"4"))
        client.send(aliased("c", 1, b"5"), aliased("", 1, b"6"), aliased("", 2, b"7"))
        assert bench.records() == [
            ("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b"4"), ("c", b"5"), ("c", b"6"), ("b", b"7")
        ]  # fmt: skip


def test_aliases_end_with_the_connection() -> None:
    with Bench() as bench:
        client = client_of(bench, clean_start=False)
        client.send(aliased("a", 64))
        client.drop()
        client = client_of(bench, clean_start=False)
        client.send(aliased("", 64))
        assert client.received() == [Disconnect(ReasonCode.PROTOCOL_ERROR)]


def test_an_alias_outlives_the_place_of_its_topic_in_the_table() -> None:
    with Bench(engine=EngineLimits(topics_max=8)) as bench:
        client, other = client_of(bench), client_of(bench, "other")
        client.send(aliased("kept", 3, b"1"), aliased("", 3, b"2"))
        for turn in range(4):
            other.send(*(Publish(f"{turn}/{i}") for i in range(8)))
        assert bench.engine.topic_find(b"kept") == 2**32 - 1
        client.send(aliased("", 3, b"3"), aliased("", 3, b"4"))
        assert [record for record in bench.records() if record[0] == "kept"] == [
            ("kept", b"%d" % i) for i in (1, 2, 3, 4)
        ]  # fmt: skip


class Rules(AnyTopic):
    """May publish to what is in `allowed`."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = set(allowed)
        self.asked: list[str] = []

    def may_publish(self, client: ClientInfo, topic: str) -> bool:
        self.asked.append(topic)
        return topic in self.allowed


def test_an_alias_does_not_go_around_the_rules_and_asks_for_them_once() -> None:
    rules = Rules("good")
    with Bench(access=rules) as bench:
        client = client_of(bench)
        client.send(aliased("good", 1), aliased("bad", 2))
        for i in range(1, 5):
            client.send(
                aliased("", 1, b"%d" % i, qos=1, packet_id=i), aliased("", 2, b"no", qos=1, packet_id=9)
            )
        assert client.received() == [
            packet for i in range(1, 5)
            for packet in (PubAck(i, UNHEARD), PubAck(9, ReasonCode.NOT_AUTHORIZED))
        ]  # fmt: skip
        assert rules.asked == ["good", "bad"]
        rules.allowed = {"bad"}
        bench.broker.acl_changed(rules)
        client.send(aliased("", 1, qos=1, packet_id=1), aliased("", 2, qos=1, packet_id=2))
        assert client.received() == [PubAck(1, ReasonCode.NOT_AUTHORIZED), PubAck(2, UNHEARD)]
        assert bench.stats.dropped()["denied"] == 6


def test_an_alias_for_a_topic_that_is_too_long_is_answered_like_the_topic() -> None:
    with Bench(limits=BrokerLimits(topics=TopicLimits(topic_max_bytes=5))) as bench:
        client = client_of(bench)
        client.send(
            aliased("too long", 1, qos=1, packet_id=1),
            aliased("", 1, qos=2, packet_id=2),
            Publish("too/long"),
            aliased("short", 1, qos=1, packet_id=3),
            aliased("", 1, qos=1, packet_id=4),
        )
        assert client.received() == [
            PubAck(1, ReasonCode.TOPIC_NAME_INVALID),
            PubRec(2, ReasonCode.TOPIC_NAME_INVALID),
            PubAck(3, UNHEARD),
            PubAck(4, UNHEARD),
        ]
        assert bench.stats.dropped()["topic name"] == 3
        client.send(aliased("too long", 1))
        bench.engine.feed(client.handle, encode(aliased("", 1), V5))
        assert bench.engine.events() == []  # Python gets no second question
        assert bench.stats.dropped()["topic name"] == 5


# ---- what acknowledgements say ----


def test_who_publishes_learns_whether_anybody_listens() -> None:
    with Bench() as bench:
        client, other = client_of(bench), bench.client("other")
        client.send(Publish("t", b"", 1, packet_id=1), Publish("t", b"", 2, packet_id=2), PubRel(2))
        other.subscribe("t")
        client.send(Publish("t", b"", 1, packet_id=1), Publish("t", b"", 2, packet_id=2), PubRel(2))
        assert client.received() == [
            PubAck(1, UNHEARD), PubRec(2), PubComp(2), PubAck(1), PubRec(2), PubComp(2)
        ]  # fmt: skip


def test_acknowledgements_take_the_short_form_when_all_is_well() -> None:
    with Bench() as bench:
        client, other = client_of(bench), bench.client("other")
        other.subscribe("#")
        client.send(Publish("t", b"", 1, packet_id=1), Publish("t", b"", 2, packet_id=2), PubRel(2))
        assert client.bytes_received() == bytes.fromhex("40020001 50020002 70020002")
        client.send(PubRel(3), PubRec(4), Publish("$x", b"", 1, packet_id=5))
        assert client.bytes_received() == bytes.fromhex("7003000392 6203000492 4003000587")


def test_what_is_denied_is_said_and_frees_the_identifier() -> None:
    with Bench() as bench:
        client = client_of(bench)
        client.send(Publish("$x", b"", 2, packet_id=5), Publish("t", b"1", 2, packet_id=5))
        assert client.received() == [PubRec(5, ReasonCode.NOT_AUTHORIZED), PubRec(5)]
        assert bench.records() == [("t", b"1")]


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff",
        b"ok \xc0\x80 not",
        b"a" * 8 + b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xf0\x8f\xbf\xbf",
        b"\xe0\x9f\xbf",
    ],
)
def test_a_payload_that_is_not_the_text_it_is_said_to_be_is_refused(payload: bytes) -> None:
    text, plain = Properties(payload_format_indicator=1), Properties(payload_format_indicator=0)
    with Bench() as bench:
        client = client_of(bench)
        client.send(
            Publish("t", payload, properties=text),
            Publish("t", payload, 1, packet_id=1, properties=text),
            Publish("t", payload, 2, packet_id=2, properties=text),
            Publish("t", payload, 1, packet_id=3, properties=plain),
            Publish("t", "zürich \0 \U0001f600".encode(), 2, packet_id=2, properties=text),
        )
        refused = ReasonCode.PAYLOAD_FORMAT_INVALID
        assert client.received() == [
            PubAck(1, refused),
            PubRec(2, refused),
            PubAck(3, UNHEARD),
            PubRec(2),
        ]
        assert bench.stats.dropped()["payload format"] == 3
        assert len(bench.records()) == 2


def test_a_full_ring_is_said_and_the_client_stays() -> None:
    with Bench(capacity_bytes=1 << 16, writer={"when_full": "reject", "queue_timeout_ms": 0}) as bench:
        client = client_of(bench)
        client.send(Publish("t"))
        reader = bench.partition.ring.reader(start="oldest", blocks_writer=True, local=True)
        while bench.partition.writer.publish(bytes(1000), key="filler") is not None:
            pass
        client.send(Publish("t", bytes(1000), 1, packet_id=1), Publish("t", bytes(1000), 2, packet_id=2))
        assert client.received() == [
            PubAck(1, ReasonCode.QUOTA_EXCEEDED),
            PubRec(2, ReasonCode.QUOTA_EXCEEDED),
        ]
        reader.close()
        client.send(Publish("t", bytes(1000), 2, packet_id=2))
        assert client.received() == [PubRec(2)]
        assert bench.stats.dropped()["full"] == 2


def test_what_no_ring_takes_is_refused_and_the_client_stays() -> None:
    with Bench(capacity_bytes=1 << 16) as bench:
        client = client_of(bench)
        client.send(Publish("t", bytes(60_000), 1, packet_id=1), Publish("t", bytes(60_000)))
        assert client.received() == [PubAck(1, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)]
        assert bench.stats.dropped()["too large"] == 2


def test_a_full_topic_table_is_said() -> None:
    with Bench(engine=EngineLimits(topics_max=2)) as bench:
        client = client_of(bench)
        client.send(*(Publish(f"t/{i}", b"x", retain=True) for i in range(2)))  # these cannot be recycled
        client.send(Publish("t/2", b"x", 1, packet_id=1))
        assert client.received() == [PubAck(1, ReasonCode.QUOTA_EXCEEDED)]


# ---- QoS 2, and acknowledgements from clients ----


def test_a_repeated_identifier_is_stored_once_also_after_a_reconnect() -> None:
    with Bench() as bench:
        client = client_of(bench, clean_start=False, properties=Properties(session_expiry_interval_s=100))
        client.send(Publish("t", b"1", 2, packet_id=7))
        client.drop()
        client = client_of(bench, clean_start=False, properties=Properties(session_expiry_interval_s=100))
        client.send(Publish("t", b"1", 2, dup=True, packet_id=7), PubRel(7), PubRel(7))
        assert client.received() == [
            PubRec(7), PubComp(7), PubComp(7, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
        ]  # fmt: skip
        assert bench.records() == [("t", b"1")]


@pytest.mark.parametrize("properties", [Properties(), Properties(reason_string="no", user=(("a", "b"),))])
def test_a_refusal_ends_a_delivery(properties: Properties) -> None:
    with Bench() as bench:
        client = client_of(bench, properties=Properties(receive_maximum=1))
        session = bench.broker.sessions.get("c")
        assert session is not None
        client.send(Subscribe(1, (Subscription("t", 2),)))
        for i in range(2):
            bench.broker.publish("t", b"%d" % i, qos=2)
        bench.settle()
        client.bytes_received()
        client.send(PubRec(1, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, properties))
        facts = bench.engine.session_stats(session.handle)
        assert facts is not None
        assert facts[:3] == (1, 0, 1)  # the second may go now, and no PUBREL went
        assert client.bytes_received()[:1] == b"\x34"
        client.send(PubRec(2, ReasonCode.SUCCESS, properties))
        assert client.received() == [PubRel(2)]
        client.send(PubComp(2, ReasonCode.SUCCESS, properties))
        facts = bench.engine.session_stats(session.handle)
        assert facts is not None
        assert facts[:3] == (0, 0, 2)


# ---- Receive Maximum ----


def many(first: int, count: int, qos: int) -> list[Packet]:
    return [Publish("t", b"", qos, packet_id=first + i) for i in range(count)]


def test_more_unfinished_messages_than_the_receive_maximum_end_the_connection() -> None:
    with Bench(engine=EngineLimits(receive_max=3)) as bench:
        client = client_of(bench)
        client.send(*many(1, 3, 2))
        client.send(Publish("t", b"", 2, dup=True, packet_id=2))  # one of them again
        client.send(Publish("t"), PubRel(1), *many(4, 1, 2))
        assert client.is_open
        client.send(*many(5, 1, 1))
        assert client.received()[-1] == Disconnect(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)
        assert bench.stats.closed()["receive maximum"] == 1
        assert len(bench.records()) == 5


def test_acknowledgements_that_wait_for_the_disk_count() -> None:
    with Bench(engine=EngineLimits(receive_max=3), durability=Durability.DISK) as bench:
        client = client_of(bench)
        for _ in range(3):
            client.send(*many(1, 3, 1))
            assert client.received() == []
            bench.partition.ring.durable(bench.partition.writer.end_position)
            bench.settle()
            assert client.received() == [PubAck(i, UNHEARD) for i in (1, 2, 3)]
        client.send(*many(1, 1, 1), *many(2, 2, 2))
        client.send(*many(2, 1, 2), *many(1, 1, 1))
        assert client.is_open
        client.send(*many(4, 1, 1))
        assert client.received() == [Disconnect(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)]


def test_a_refused_message_does_not_count_once_its_refusal_is_sent() -> None:
    with Bench(engine=EngineLimits(receive_max=2)) as bench:
        client = client_of(bench)
        for _ in range(5):
            client.send(*(Publish("$no", b"", 2, packet_id=i) for i in (1, 2)))
        client.send(*many(1, 2, 2))
        assert client.is_open


def test_a_new_connection_begins_with_the_whole_receive_maximum() -> None:
    with Bench(engine=EngineLimits(receive_max=2)) as bench:
        keep = Properties(session_expiry_interval_s=100)
        client_of(bench, clean_start=False, properties=keep).send(*many(1, 2, 2))
        client = client_of(bench, clean_start=False, properties=keep)
        client.send(*many(3, 2, 2), PubRel(1), PubRel(2))
        assert client.is_open


def test_the_end_of_an_earlier_exchange_takes_nothing_from_a_later_one() -> None:
    """A PUBREL of the connection before ends an exchange that does not count (section 4.9)."""
    with Bench(engine=EngineLimits(receive_max=2), durability=Durability.DISK) as bench:
        keep = Properties(session_expiry_interval_s=100)
        client_of(bench, clean_start=False, properties=keep).send(*many(1, 1, 2))
        client = client_of(bench, clean_start=False, properties=keep)
        client.send(*many(2, 1, 1), PubRel(1))
        bench.partition.ring.durable(bench.partition.writer.end_position)
        bench.settle()
        client.send(*many(3, 2, 1))
        assert client.is_open
        client.send(*many(5, 1, 1))
        assert client.received()[-1] == Disconnect(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)


def test_an_mqtt_3_client_has_no_receive_maximum() -> None:
    with Bench(engine=EngineLimits(receive_max=2)) as bench:
        client = bench.client()
        client.send(*many(1, 100, 2))
        assert client.received() == [PubRec(i) for i in range(1, 101)]
