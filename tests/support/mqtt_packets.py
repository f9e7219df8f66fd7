"""Hypothesis strategies: any valid packet of a version, as a value of edge.mqtt."""

import functools
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from edge.mqtt import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Version,
    Will,
)
from edge.mqtt.packet_types import REASONS, PacketType
from edge.mqtt.reason_codes import CONNACK_RETURN_CODES

identifiers = st.integers(1, 65_535)
strings = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
# About 127 and 16383, where the remaining length takes one byte more.
payloads = st.one_of(
    st.binary(max_size=40),
    st.integers(100, 140).map(bytes),
    st.integers(16_340, 16_400).map(bytes),
)
binaries = st.binary(max_size=60)
levels = st.text(st.characters(exclude_characters="\0+#/", exclude_categories=["Cs"]), max_size=8)
names = st.lists(levels, min_size=1, max_size=6).map("/".join).filter(bool)
qos = st.integers(0, 2)


@st.composite
def filters(draw: st.DrawFn) -> str:
    """A valid topic filter; a shared one of MQTT 5 only by the way it is made: never."""
    parts = draw(st.lists(st.one_of(levels, st.just("+")), min_size=1, max_size=5))
    if draw(st.booleans()):
        parts.append("#")
    return "/".join(parts) or "#"


@functools.cache
def packets(version: Version) -> st.SearchStrategy[Packet]:
    """Any packet that either side may send in `version`."""
    common: list[st.SearchStrategy[Packet]] = [
        _connect(version),
        _connack(version),
        publishes(version),
        *_acks(version),
        _subscribe(version),
    ]
    common += [_suback(version), _unsubscribe(version), _unsuback(version)]
    common += [st.just(PingReq()), st.just(PingResp()), _disconnect(version)]
    if version is Version.V5:
        common.append(
            st.builds(
                Auth,
                _reasons(PacketType.AUTH),
                _properties(authentication_method=strings, reason_string=strings),
            )
        )
    return st.one_of(common)


@functools.cache
def publishes(version: Version) -> st.SearchStrategy[Publish]:
    """PUBLISH at any QoS."""
    properties = _message_properties(version)
    at_0 = st.builds(Publish, names, payloads, retain=st.booleans(), properties=properties)
    above = st.builds(
        Publish, names, payloads, st.integers(1, 2), st.booleans(), st.booleans(), identifiers, properties
    )
    return st.one_of(at_0, above)


def _properties(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Properties]:
    optional = {name: st.none() | strategy for name, strategy in fields.items()}
    pairs = st.lists(st.tuples(strings, strings), max_size=3).map(tuple)
    return st.builds(Properties, user=pairs, **optional)


def _only_5(version: Version, strategy: st.SearchStrategy[Properties]) -> st.SearchStrategy[Properties]:
    return strategy if version is Version.V5 else st.just(Properties())


def _message_properties(version: Version, **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Properties]:
    uint32 = st.integers(0, 0xFFFF_FFFF)
    return _only_5(
        version,
        _properties(
            payload_format_indicator=st.integers(0, 1),
            message_expiry_interval_s=uint32,
            content_type=strings,
            response_topic=names,
            correlation_data=binaries,
            **more,
        ),
    )


def _reasons(packet_type: PacketType) -> st.SearchStrategy[ReasonCode]:
    return st.sampled_from([ReasonCode(code) for code in sorted(REASONS[packet_type].codes)])


@st.composite
def _connect(draw: st.DrawFn, version: Version) -> Connect:
    is_5 = version is Version.V5
    clean_start = draw(st.booleans())
    client_id = draw(strings if is_5 or (clean_start and version is Version.V311) else strings.filter(bool))
    username = draw(st.none() | strings)
    password = draw(st.none() | binaries) if is_5 or username is not None else None
    will = st.builds(
        Will, names, binaries, qos, st.booleans(),
        _message_properties(version, will_delay_interval_s=st.integers(0, 0xFFFF_FFFF)),
    )  # fmt: skip
    properties = _properties(
        session_expiry_interval_s=st.integers(0, 0xFFFF_FFFF),
        receive_maximum=identifiers,
        maximum_packet_size_bytes=st.integers(1, 0xFFFF_FFFF),
        topic_alias_maximum=st.integers(0, 65_535),
    )
    return Connect(
        client_id, clean_start, draw(st.integers(0, 65_535)), username, password,
        draw(st.none() | will), version, draw(_only_5(version, properties)),
    )  # fmt: skip


@st.composite
def _connack(draw: st.DrawFn, version: Version) -> ConnAck:
    codes = _reasons(PacketType.CONNACK) if version is Version.V5 else st.sampled_from(CONNACK_RETURN_CODES)
    code = draw(codes)
    present = draw(st.booleans()) if not code.failed and version is not Version.V31 else False
    properties = _properties(
        assigned_client_identifier=strings,
        server_keep_alive_s=st.integers(0, 65_535),
        maximum_qos=st.integers(0, 1),
    )
    return ConnAck(present, code, draw(_only_5(version, properties)))


def _acks(version: Version) -> list[st.SearchStrategy[Packet]]:
    return [
        _ack(PubAck, PacketType.PUBACK, version),
        _ack(PubRec, PacketType.PUBREC, version),
        _ack(PubRel, PacketType.PUBREL, version),
        _ack(PubComp, PacketType.PUBCOMP, version),
    ]


def _ack(kind: Callable[..., Packet], number: PacketType, version: Version) -> st.SearchStrategy[Packet]:
    if version is not Version.V5:
        return st.builds(kind, identifiers)
    return st.builds(kind, identifiers, _reasons(number), _properties(reason_string=strings))


def _subscribe(version: Version) -> st.SearchStrategy[Subscribe]:
    if version is Version.V5:
        one = st.builds(Subscription, filters(), qos, st.booleans(), st.booleans(), st.integers(0, 2))
        plain = one.filter(lambda subscription: not subscription.topic_filter.startswith("$share/"))
        some = st.lists(st.integers(1, 268_435_455), max_size=1).map(tuple)
        properties = st.builds(Properties, subscription_identifiers=some)
        return st.builds(
            Subscribe, identifiers, st.lists(plain, min_size=1, max_size=4).map(tuple), properties
        )
    one = st.builds(Subscription, filters(), qos)
    return st.builds(Subscribe, identifiers, st.lists(one, min_size=1, max_size=4).map(tuple))


def _suback(version: Version) -> st.SearchStrategy[SubAck]:
    is_5 = version is Version.V5
    codes = (
        _reasons(PacketType.SUBACK)
        if is_5
        else st.sampled_from([ReasonCode(code) for code in (0, 1, 2, 0x80)])
    )
    properties = _only_5(version, _properties(reason_string=strings))
    return st.builds(SubAck, identifiers, st.lists(codes, min_size=1, max_size=5).map(tuple), properties)


def _unsubscribe(version: Version) -> st.SearchStrategy[Unsubscribe]:
    plain = filters().filter(lambda text: not text.startswith("$share/"))
    many = st.lists(plain, min_size=1, max_size=4).map(tuple)
    return st.builds(Unsubscribe, identifiers, many, _only_5(version, _properties()))


def _unsuback(version: Version) -> st.SearchStrategy[UnsubAck]:
    if version is not Version.V5:
        return st.builds(UnsubAck, identifiers)
    codes = st.lists(_reasons(PacketType.UNSUBACK), min_size=1, max_size=5).map(tuple)
    return st.builds(UnsubAck, identifiers, codes, _properties(reason_string=strings))


def _disconnect(version: Version) -> st.SearchStrategy[Disconnect]:
    if version is not Version.V5:
        return st.just(Disconnect())
    return st.builds(Disconnect, _reasons(PacketType.DISCONNECT), _properties(reason_string=strings))


@st.composite
def cut(draw: st.DrawFn, streams: st.SearchStrategy[list[bytes]]) -> tuple[bytes, list[int]]:
    """A stream and the places where it is cut: everywhere, anywhere, or about where packets begin."""
    parts = draw(streams)
    data = b"".join(parts)
    begins = [0]
    for part in parts:
        begins.append(begins[-1] + len(part))
    if len(data) < 300 and draw(st.booleans()):
        return data, list(range(1, len(data)))
    near = st.sampled_from(begins).flatmap(lambda at: st.integers(max(at - 2, 0), min(at + 9, len(data))))
    return data, sorted(draw(st.lists(st.one_of(near, st.integers(0, len(data))), max_size=12)))
