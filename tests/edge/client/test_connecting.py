"""Connecting: addresses, refusals and silences, each with words a person can act on."""

import asyncio
import resource
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import get_type_hints

import pytest

import edge.client
from edge.client import Options
from edge.client.connection import _explained
from edge.client.errors import (
    CannotConnect,
    ClientError,
    ConnectRefused,
    InvalidRequest,
    PublishRefused,
    SubscribeRefused,
)
from edge.client.options import Address, OptionFields, Reconnect, parse_url
from edge.errors import FILES_REMEDY
from edge.mqtt import ConnAck, Connect, Properties, Publish, ReasonCode, SubAck, Subscribe, Version, Will
from tests.support.cancelling import ends_when_cancelled_on_leaving
from tests.support.ports import free_port
from tests.support.scripted_broker import ScriptedBroker, connect_packet, scripted


async def refusal(url: str, **options: object) -> ClientError:
    with pytest.raises(ClientError) as error:
        async with edge.client.connect(url, **options):  # type: ignore[arg-type]
            raise AssertionError("connected")
    return error.value


@contextmanager
def no_free_descriptors() -> Iterator[None]:
    """No further file descriptor for this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_nobody_listens() -> None:
    port = free_port()
    error = await refusal(f"mqtt://127.0.0.1:{port}")
    assert isinstance(error, CannotConnect)
    assert str(error) == f"cannot connect to 127.0.0.1:{port}: connection refused, no program listens there"
    assert "brim run" in error.hint


async def test_a_name_with_two_addresses_and_nobody_there() -> None:
    error = await refusal(f"mqtt://localhost:{free_port()}")
    assert "connection refused" in str(error)


async def test_an_unknown_host() -> None:
    error = await refusal("mqtt://no-such-host.invalid")
    assert "host 'no-such-host.invalid' is not known" in str(error)


async def test_a_listener_that_never_answers() -> None:
    async with scripted() as broker:
        error = await refusal(broker.url, connect_timeout_s=0.05)
    assert "no answer within 0.05 s" in str(error)


async def test_a_listener_that_hangs_up() -> None:
    async with scripted() as broker:
        connecting = asyncio.create_task(refusal(broker.url))
        peer = await broker.connection()
        await peer.expect(Connect)
        peer.close()
        error = await connecting
    assert "closed the connection instead of answering" in str(error)
    assert "mqtts://" in error.hint


async def test_a_listener_that_speaks_something_else() -> None:
    async with scripted() as broker:
        connecting = asyncio.create_task(refusal(broker.url))
        (await broker.connection()).send_bytes(b"220 mail.example ESMTP\r\n")
        error = await connecting
    assert isinstance(error, CannotConnect)
    assert "does not answer as an MQTT broker: [MQTT-" in str(error)


async def test_a_plain_listener_where_tls_was_wanted() -> None:
    async with scripted() as broker:
        connecting = asyncio.create_task(refusal(broker.url.replace("mqtt:", "mqtts:")))
        (await broker.connection()).send_bytes(b"no TLS here, sorry\r\n")
        error = await connecting
    assert "by TLS" in str(error)
    assert "mqtt://" in error.hint


async def test_a_plain_listener_that_hangs_up_on_tls() -> None:
    async with scripted() as broker:
        connecting = asyncio.create_task(refusal(broker.url.replace("mqtt:", "mqtts:")))
        (await broker.connection()).close()
        error = await connecting
    assert str(error) == f"cannot connect to 127.0.0.1:{broker.port} by TLS: that port has no TLS"
    assert "mqtt://" in error.hint
    assert "--tls" in error.hint


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, "unsupported protocol version"),
        (ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "client identifier not valid"),
        (ReasonCode.SERVER_UNAVAILABLE, "server unavailable"),
        (ReasonCode.BAD_USER_NAME_OR_PASSWORD, "bad user name or password"),
        (ReasonCode.NOT_AUTHORIZED, "not authorized"),
    ],
)
async def test_a_refusal_is_explained(reason: ReasonCode, words: str) -> None:
    async with scripted() as broker:
        connecting = asyncio.create_task(refusal(broker.url))
        await broker.accepted(reason_code=reason)
        error = await connecting
    assert isinstance(error, ConnectRefused)
    assert str(error) == f"127.0.0.1:{broker.port} refused the connection: {words}"
    assert error.reason_code is reason
    assert error.hint
    assert error.temporary is (reason is ReasonCode.SERVER_UNAVAILABLE)


async def test_the_words_of_an_mqtt_5_broker_are_passed_on() -> None:
    async with scripted() as broker:
        connecting = asyncio.create_task(refusal(broker.url, version=Version.V5))
        await broker.accepted(
            reason_code=ReasonCode.BANNED, properties=Properties(reason_string="since\x1b[31m Tuesday")
        )
        error = await connecting
    assert str(error).endswith("banned, 'since\\x1b[31m Tuesday'"), "hostile text is escaped"


async def test_the_hint_of_a_redirection_has_the_other_server() -> None:
    async with scripted() as broker:
        connecting = asyncio.create_task(refusal(broker.url, version=Version.V5))
        await broker.accepted(
            reason_code=ReasonCode.USE_ANOTHER_SERVER, properties=Properties(server_reference="new\x1b:1883")
        )
        error = await connecting
    assert isinstance(error, ConnectRefused)
    assert error.other_server == "new\x1b:1883"
    assert error.hint == "connect to 'new\\x1b:1883'", "hostile text is escaped"


async def test_connect_says_what_was_chosen() -> None:
    will = Will("w", b"x", 1, True)
    async with scripted() as broker:
        sent = await connect_packet(
            broker,
            broker.url,
            client_id="c",
            clean_start=False,
            keep_alive_s=7,
            username="u",
            password="p",
            will=will,
        )
    assert sent == Connect("c", False, 7, "u", b"p", will)


async def test_user_and_password_may_stand_in_the_url() -> None:
    async with scripted() as broker:
        sent = await connect_packet(broker, f"mqtt://me%40home:p%3Aw@127.0.0.1:{broker.port}")
    assert (sent.username, sent.password) == ("me@home", b"p:w")


async def test_a_client_identifier_is_made_up_that_every_broker_accepts() -> None:
    async with scripted() as broker:
        first = (await connect_packet(broker, broker.url)).client_id
        second = (await connect_packet(broker, broker.url)).client_id
    assert first != second
    assert first.isascii()
    assert first.isalnum()
    assert len(first) <= 23


async def test_mqtt_5_announces_its_limits() -> None:
    async with scripted() as broker:
        sent = await connect_packet(broker, broker.url, version=Version.V5, receive_maximum=7)
    assert sent.properties == Properties(receive_maximum=7, maximum_packet_size_bytes=16 << 20)


async def test_the_identifier_that_the_broker_assigns_is_taken() -> None:
    async with scripted() as broker:
        client = edge.client.connect(broker.url, version=Version.V5)
        connecting = asyncio.create_task(client.__aenter__())
        await broker.accepted(properties=Properties(assigned_client_identifier="yours"))
        await connecting
        assert client.client_id == "yours"
        await client.close()


async def test_a_message_in_one_chunk_with_connack_is_not_lost() -> None:
    async with scripted() as broker:
        client = edge.client.connect(broker.url, clean_start=False, client_id="c")
        connecting = asyncio.create_task(client.__aenter__())
        peer = await broker.connection()
        await peer.expect(Connect)
        peer.send(ConnAck(True), Publish("early", b"x"))
        await connecting
        messages = client.subscribe("early")
        receiving = asyncio.create_task(anext(messages))
        subscribe = await peer.expect(Subscribe)
        peer.send(SubAck(subscribe.packet_id, (ReasonCode.SUCCESS,)))
        assert (await receiving).payload == b"x"
        await client.close()


async def test_a_task_that_is_cancelled_while_it_disconnects_is_still_cancelled() -> None:
    async with scripted() as broker:
        leaving = asyncio.create_task(ends_when_cancelled_on_leaving(edge.client.connect(broker.url)))
        peer = await broker.connection()
        await peer.expect(Connect)
        peer.send(ConnAck())
        assert await leaving


async def test_a_unix_socket_will_do(tmp_path) -> None:
    path = tmp_path / "mqtt.sock"
    broker = ScriptedBroker()
    server = await asyncio.start_unix_server(broker.arrive, path)
    connecting = asyncio.create_task(edge.client.connect(f"unix://{path}").__aenter__())
    await broker.accepted()
    client = await connecting
    await client.close()
    server.close()
    broker.close()
    await server.wait_closed()


# ---- addresses and options -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "address", "tls"),
    [
        ("mqtt://broker", Address("broker", 1883), False),
        ("mqtts://broker", Address("broker", 8883), True),
        ("mqtt://127.0.0.1:1884/", Address("127.0.0.1", 1884), False),
        ("mqtt://[::1]:1883", Address("::1", 1883), False),
        ("unix:///run/brim/mqtt.sock", Address("", 0, "/run/brim/mqtt.sock"), False),
    ],
)
def test_urls(url: str, address: Address, tls: bool) -> None:
    target = parse_url(url)
    assert (target.address, target.tls) == (address, tls)


@pytest.mark.parametrize(
    "url",
    [
        "broker",
        "http://broker",
        "mqtt://",
        "mqtt://broker:port",
        "mqtt://broker:99999",
        "mqtt://b/topic",
        "unix:",
    ],
)
def test_what_is_no_address_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ClientError) as error:
        parse_url(url)
    assert "mqtt://127.0.0.1:1883" in error.value.hint


async def test_a_missing_socket_is_not_taken_for_a_wrong_port(tmp_path) -> None:
    with pytest.raises(CannotConnect, match="No such file") as error:
        await edge.client.connect(f"unix://{tmp_path}/none").__aenter__()
    assert error.value.hint.startswith("name the socket of a listener")


async def test_a_process_without_free_descriptors_is_told_its_limit() -> None:
    port = free_port()
    with no_free_descriptors():
        error = await refusal(f"mqtt://127.0.0.1:{port}")
    assert isinstance(error, CannotConnect)
    assert error.hint == FILES_REMEDY


def test_addresses_are_shown_as_they_are_written() -> None:
    assert [str(Address("::1", 1)), str(Address("h", 2)), str(Address("", 0, "/s"))] == [
        "[::1]:1",
        "h:2",
        "/s",
    ]


@pytest.mark.parametrize(
    "options", [{"window": 0}, {"window": 65_536}, {"keep_alive_s": -1}, {"queue_limit": 0}]
)
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ClientError, match=r"is not in \d+\.\."):
        Options(**options)  # type: ignore[arg-type]


def test_a_text_that_no_connect_can_carry_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequest, match="70000 bytes exceed the 65535"):
        edge.client.connect(client_id="c" * 70_000)


def test_connect_takes_every_option_and_no_other() -> None:
    hints = get_type_hints(OptionFields)
    assert hints == {field.name: get_type_hints(Options)[field.name] for field in fields(Options)}


def test_tls_is_verified_unless_told_otherwise() -> None:
    context = edge.client.connect("mqtts://broker")._tls
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert edge.client.connect("mqtt://broker")._tls is None


@pytest.mark.parametrize(
    ("topic", "code", "hint"),
    [
        ("a/b", ReasonCode.NOT_AUTHORIZED, "access rules"),
        ("$delayed/5/a", ReasonCode.NOT_AUTHORIZED, "[delayed]"),
        ("a/b", ReasonCode.QUOTA_EXCEEDED, "brim status"),
        ("a/b", ReasonCode.PACKET_IDENTIFIER_IN_USE, ""),
    ],
)
def test_a_refused_message_has_a_remedy(topic: str, code: ReasonCode, hint: str) -> None:
    refused = PublishRefused(topic, code)
    assert hint in refused.hint
    assert bool(refused.hint) == bool(hint)


@pytest.mark.parametrize(
    ("code", "hint"), [(62, "subjectAltName"), (64, "subjectAltName"), (10, "trust its authority")]
)
def test_a_certificate_that_does_not_verify_has_a_remedy_by_its_cause(code: int, hint: str) -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = code, "the reason."
    explained = _explained(error, Address("h", 8883), 1.0, secure=True)
    assert str(explained).splitlines()[0].endswith("its certificate does not verify: the reason")
    assert hint in explained.hint


def test_a_refusal_before_mqtt_5_has_no_reason() -> None:
    assert (
        str(SubscribeRefused("a", ReasonCode.UNSPECIFIED_ERROR)).splitlines()[0].endswith("'a' was refused")
    )


def test_delays_are_random_below_a_doubling_limit() -> None:
    delays = Reconnect(first_s=1.0, max_s=8.0).delays()
    drawn = [next(delays) for _ in range(200)]
    assert all(delay <= limit for delay, limit in zip(drawn, [1.0, 2.0, 4.0, *[8.0] * 197], strict=True))
    assert max(drawn) > 6.0
    assert min(drawn[3:]) < 2.0, "full jitter: from 0, not around the limit"


def test_attempts_end() -> None:
    assert len(list(Reconnect(attempts=3).delays())) == 3
