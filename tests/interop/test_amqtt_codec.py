"""amqtt reads what we write, and we read what amqtt writes: a codec by other hands, for 3.1.1."""

from amqtt.adapters import BufferReader
from amqtt.mqtt import packet_class
from amqtt.mqtt.connect import ConnectPacket, ConnectPayload, ConnectVariableHeader
from amqtt.mqtt.packet import MQTTFixedHeader, PacketIdVariableHeader
from amqtt.mqtt.publish import PublishPacket
from amqtt.mqtt.subscribe import SubscribePacket, SubscribePayload
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.mqtt import Connect, Packet, Publish, Subscribe, Subscription, Version, Will, encode
from tests.support.frames import packets_of
from tests.support.mqtt_packets import binaries, filters, identifiers, names, publishes, qos, strings


def theirs(frame: bytes) -> object:
    """`frame` as amqtt reads it from a stream."""

    async def read() -> object:
        reader = BufferReader(frame)
        header = await MQTTFixedHeader.from_stream(reader)
        assert header is not None
        return await packet_class(header).from_stream(reader, fixed_header=header)

    try:  # The reader has all there is, so the coroutine ends at its first step: no event loop.
        read().send(None)
    except StopIteration as finished:
        packet: object = finished.value
        return packet
    raise AssertionError("amqtt waits for more bytes than the packet has")


def ours(frame: bytes) -> Packet:
    [packet] = packets_of(bytes(frame))
    return packet


wills = st.builds(Will, names, binaries.filter(bool), qos, st.booleans())
connects = st.builds(
    Connect,
    strings.filter(bool),
    st.booleans(),
    st.integers(0, 65_535),
    strings.filter(bool),
    st.text("abc", min_size=1).map(str.encode),
    st.none() | wills,
)


@given(connects)
@settings(max_examples=60, deadline=None)
def test_amqtt_reads_our_connect(connect: Connect) -> None:
    packet = theirs(encode(connect))
    assert isinstance(packet, ConnectPacket)
    assert packet.proto_name == "MQTT"
    assert packet.proto_level == 4
    assert packet.client_id == connect.client_id
    assert packet.clean_session_flag == connect.clean_start
    assert packet.keep_alive == connect.keep_alive_s
    assert packet.username == connect.username
    assert connect.password is not None
    assert packet.password == connect.password.decode()
    if connect.will is None:
        assert not packet.will_flag
    else:
        assert packet.will_topic == connect.will.topic
        assert bytes(packet.will_message) == connect.will.payload
        assert (packet.will_qos, packet.will_retain_flag) == (connect.will.qos, connect.will.retain)


@given(connects)
@settings(max_examples=60, deadline=None)
def test_we_read_amqtts_connect(connect: Connect) -> None:
    variable, payload = (
        ConnectVariableHeader(keep_alive=connect.keep_alive_s),
        ConnectPayload(connect.client_id),
    )
    packet = ConnectPacket(variable_header=variable, payload=payload)
    packet.clean_session_flag = connect.clean_start
    packet.username_flag = packet.password_flag = True
    assert connect.password is not None
    packet.username, packet.password = connect.username, connect.password.decode()
    if connect.will is not None:
        packet.will_flag = True
        packet.will_topic, packet.will_message = connect.will.topic, connect.will.payload
        packet.will_qos, packet.will_retain_flag = connect.will.qos, connect.will.retain
    assert ours(bytes(packet.to_bytes())) == connect


@given(publishes(Version.V311))
@settings(max_examples=60, deadline=None)
def test_amqtt_reads_our_publish(publish: Publish) -> None:
    packet = theirs(encode(publish))
    assert isinstance(packet, PublishPacket)
    assert packet.topic_name == publish.topic
    assert bytes(packet.data or b"") == publish.payload
    assert (packet.qos, packet.retain_flag, packet.dup_flag) == (publish.qos, publish.retain, publish.dup)
    assert (packet.packet_id or 0) == publish.packet_id


@given(publishes(Version.V311))
@settings(max_examples=60, deadline=None)
def test_we_read_amqtts_publish(publish: Publish) -> None:
    packet = PublishPacket.build(
        publish.topic,
        bytes(publish.payload),
        publish.packet_id or None,
        publish.dup,
        publish.qos,
        publish.retain,
    )
    assert ours(bytes(packet.to_bytes())) == publish


subscribes = st.builds(
    Subscribe,
    identifiers,
    st.lists(st.builds(Subscription, filters(), qos), min_size=1, max_size=4).map(tuple),
)


@given(subscribes)
@settings(max_examples=60, deadline=None)
def test_amqtt_reads_our_subscribe(subscribe: Subscribe) -> None:
    packet = theirs(encode(subscribe))
    assert isinstance(packet, SubscribePacket)
    assert packet.variable_header.packet_id == subscribe.packet_id
    assert packet.payload.topics == [(one.topic_filter, one.qos) for one in subscribe.subscriptions]


@given(subscribes)
@settings(max_examples=60, deadline=None)
def test_we_read_amqtts_subscribe(subscribe: Subscribe) -> None:
    topics = [(one.topic_filter, one.qos) for one in subscribe.subscriptions]
    packet = SubscribePacket(
        variable_header=PacketIdVariableHeader(subscribe.packet_id), payload=SubscribePayload(topics)
    )
    assert ours(bytes(packet.to_bytes())) == subscribe
