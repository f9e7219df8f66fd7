"""Versions as plain numbers, and the sessions of MQTT 5."""

import asyncio

import pytest

import edge.client
from edge.client.errors import ClientError
from edge.client.options import NEVER_S
from edge.mqtt import Connect, Properties, Version
from tests.support.brim_process import BrimProcess
from tests.support.scripted_broker import connect_packet, scripted
from tests.support.waiting import PATIENCE_S


@pytest.mark.parametrize("number", [3, 4, 5])
async def test_a_version_may_be_a_plain_number(number: int) -> None:
    async with scripted() as broker:
        plain = await connect_packet(broker, broker.url, version=number, client_id="c")
    async with scripted() as broker:
        named = await connect_packet(broker, broker.url, version=Version(number), client_id="c")
    assert plain == named
    assert plain.version is Version(number)


@pytest.mark.parametrize("version", [6, 0, "5", None])
def test_a_version_that_does_not_exist_is_refused_with_the_allowed_ones(version: object) -> None:
    with pytest.raises(ClientError, match=r"invalid version .* \(allowed: 3, 4, 5\)"):
        edge.client.connect(version=version)  # type: ignore[arg-type]


async def sent(**options: object) -> Properties:
    async with scripted() as broker:
        connect: Connect = await connect_packet(broker, broker.url, client_id="c", **options)
    return connect.properties


async def test_mqtt_5_without_a_clean_start_sends_a_session_expiry() -> None:
    assert (await sent(version=5, clean_start=False)).session_expiry_interval_s == NEVER_S
    assert (await sent(version=5)).session_expiry_interval_s is None
    assert (await sent(version=5, session_expiry_s=60)).session_expiry_interval_s == 60
    assert (await sent(version=5, clean_start=False, session_expiry_s=0)).session_expiry_interval_s is None


async def test_properties_of_the_user_keep_the_session_and_the_limits_as_well() -> None:
    own = Properties(user=(("a", "b"),))
    properties = await sent(version=5, clean_start=False, properties=own, receive_maximum=7)
    assert properties.user == (("a", "b"),)
    assert properties.session_expiry_interval_s == NEVER_S
    assert properties.receive_maximum == 7
    own = Properties(session_expiry_interval_s=9, receive_maximum=3)
    properties = await sent(version=5, clean_start=False, properties=own)
    assert (properties.session_expiry_interval_s, properties.receive_maximum) == (9, 3)


def test_a_session_expiry_needs_mqtt_5_and_32_bits() -> None:
    with pytest.raises(ClientError, match="session_expiry_s needs MQTT 5"):
        edge.client.connect(session_expiry_s=60)
    with pytest.raises(ClientError, match="session_expiry_s -1 is not in 0"):
        edge.client.connect(version=5, session_expiry_s=-1)


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_session_of_mqtt_5_loses_nothing_when_its_client_is_cut_off(
    runtime_directory, tmp_path, qos: int
) -> None:
    with BrimProcess(runtime_directory, tmp_path, bridge=False) as brim:
        url = f"mqtt://127.0.0.1:{brim.port}"

        def session() -> edge.client.Client:
            return edge.client.connect(url, version=5, client_id="plc", clean_start=False)

        async with asyncio.timeout(PATIENCE_S), edge.client.connect(url) as sender:
            received: list[str] = []
            async with session() as client:
                await client.subscribe("line/#", qos=qos).start()
                assert client._link is not None
                client._link.abort()
            for cut in range(3):
                for number in range(5):
                    await sender.publish("line/1", f"{cut} {number}", qos=qos)
                async with session() as client:
                    assert client.session_present
                    messages = client.subscribe("line/#", qos=qos)
                    received += [(await anext(messages)).text for _ in range(5)]
                    await client.publish(
                        "other", b"", qos=1
                    )  # The broker has the acknowledgements before it.
                    assert client._link is not None
                    client._link.abort()
        assert list(dict.fromkeys(received)) == [f"{cut} {n}" for cut in range(3) for n in range(5)]
