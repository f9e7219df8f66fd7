"""The HTTP server of the console: bounds of connections and times, in this process; and TLS."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from edge.config.listener import Tls
from edge.config.loader import parse
from edge.config.schema import Web
from edge.errors import ConfigError, EdgeError, PortTaken
from edge.transport.listen_sockets import bind_http
from edge.transport.tls import server_context
from edge.web import guard, http_server
from edge.web.app import PAGES, application
from edge.web.console import Console
from edge.web.http_server import HttpServer
from tests.support.waiting import until
from tests.support.web_console import write_users

HEAD = b"GET /style.css HTTP/1.1\r\nHost: localhost\r\n"
LOG_IN = (
    b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 9\r\n\r\n"
)


@asynccontextmanager
async def serving(runtime: Path, tls: ssl.SSLContext | None = None, **settings: Any) -> AsyncIterator[int]:
    """Port of a console; the broker is not there, and is not needed for files."""
    listener = bind_http("127.0.0.1:0", "web.listen")
    console = Console(Web(listen="127.0.0.1:0", **settings), runtime)
    server = HttpServer(application(console, "127.0.0.1"), listener, tls)
    await server.start()
    try:
        yield listener.getsockname()[1]
    finally:
        await server.stop()
        await asyncio.sleep(0)


async def test_a_connection_without_a_whole_head_ends(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.2)
    async with serving(runtime_directory) as port:
        for sent in (b"", HEAD):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert await end_of(reader) == b""
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):  # a connection may serve several requests
            writer.write(HEAD + b"\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            await reader.readexactly((PAGES / "style.css").stat().st_size)
        writer.close()


async def end_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_a_body_that_does_not_come_ends(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "BODY_S", 0.2)
    async with serving(runtime_directory) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST /api/v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Content-Length: 9\r\n\r\n{")
        assert (await end_of(reader)).startswith(b"HTTP/1.1 408")
        writer.close()


async def test_a_client_that_reads_no_answer_is_closed(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "STALL_S", 0.3)

    def is_closed() -> bool:
        try:
            client.send(HEAD)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            return True
        return False

    async with serving(runtime_directory) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.send((HEAD + b"\r\n") * 5_000)
            await until(is_closed)


@pytest.mark.parametrize(
    "sent", [b"", HEAD, HEAD + b"\r\n", LOG_IN], ids=["nothing", "half", "kept", "no body"]
)
async def test_connections_without_a_whole_request_exclude_no_other(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 3)
    async with serving(runtime_directory) as port:
        held = []
        for _ in range(4):
            held.append(await asyncio.open_connection("127.0.0.1", port))
            held[-1][1].write(sent)
        await end_of(held[0][0])  # the oldest one
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEAD + b"Connection: close\r\n\r\n")
            assert (await end_of(reader)).startswith(b"HTTP/1.1 200")
            writer.close()
        for _, one in held:
            one.close()


async def test_silent_handshakes_exclude_no_other(
    runtime_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 3)
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    client = ssl.create_default_context()
    authority.configure_trust(client)
    files = Tls(tmp_path / "cert.pem", tmp_path / "key.pem")
    async with serving(runtime_directory, server_context(files)) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        assert await end_of(held[0][0]) == b""  # before the time for its handshake is over
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client, server_hostname="localhost"
        )
        writer.write(HEAD + b"Connection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        for _, one in [*held, (reader, writer)]:
            one.close()


async def test_tls_serves_with_secure_cookies(runtime_directory: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    context = server_context(Tls(tmp_path / "cert.pem", tmp_path / "key.pem"))
    client = ssl.create_default_context()
    authority.configure_trust(client)
    write_users(tmp_path / "users")
    async with serving(runtime_directory, context, users_file=tmp_path / "users") as port:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client, server_hostname="localhost"
        )
        writer.write(b"GET /api/v1/session HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = (await reader.read()).decode()
        writer.close()
        assert "set-cookie: __Host-brim=" in answer
        assert "; Secure" in answer
        assert "strict-transport-security: max-age=" in answer
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"\r\n")  # no TLS
        assert b"200" not in await end_of(reader)
        writer.close()


async def test_silent_handshakes_end(
    runtime_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HANDSHAKE_S", 0.2)
    certificate = trustme.CA().issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    async with serving(
        runtime_directory, server_context(Tls(tmp_path / "cert.pem", tmp_path / "key.pem"))
    ) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await end_of(reader) == b""
        writer.close()


async def test_a_port_in_use_is_an_error_that_names_the_setting(runtime_directory: Path) -> None:
    async with serving(runtime_directory) as port:
        with pytest.raises(PortTaken, match=rf"web.listen 127.0.0.1:{port} is in use"):
            bind_http(f"127.0.0.1:{port}", "web.listen")
    await until(lambda: True)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ('[web]\nlisten = "8080"', "is not an address"),
        ('[web]\nlisten = "0.0.0.0:8080"', "is reached from other machines"),
        ('[web]\nlisten = "0.0.0.0:8080"\nusers_file = "u"', "is reached from other machines"),
        (
            '[web]\nlisten = "[::]:1"\n[web.tls]\ncertificate_file = "c"\nkey_file = "k"',
            "is reached from other",
        ),
        ('[web]\nlisten = "127.0.0.1:1"\nadmins = ["a"]', "needs users"),
        ('[web]\nlisten = "127.0.0.1:1"\nhost_names = ["a.example"]', "needs users"),
        ('[auth]\npassword_file = "p"\n[web]\nlisten = "127.0.0.1:1"', r"\[auth\] protects"),
        ('[auth]\nacl_file = "p"\n[web]\nlisten = "127.0.0.1:1"', r"\[auth\] protects"),
    ],
)
def test_a_console_that_others_could_reach_without_a_log_in_is_refused(settings: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse(settings)


def test_a_console_with_users_and_tls_may_be_reached_from_other_machines() -> None:
    tls = '[web.tls]\ncertificate_file = "c"\nkey_file = "k"'
    assert (
        parse(f'[web]\nlisten = "0.0.0.0:8443"\nusers_file = "u"\nadmins = ["a"]\n{tls}').web.tls is not None
    )
    assert parse('[auth]\npassword_file = "p"\n[web]\nlisten = "[::1]:1"\nusers_file = "u"').web.listen


def test_a_role_of_an_unknown_user_is_an_error(tmp_path: Path) -> None:
    write_users(tmp_path / "users")
    with pytest.raises(EdgeError, match="no user zoe"):
        Console(Web(users_file=tmp_path / "users", admins=("ann", "zoe")), tmp_path)


async def test_a_request_under_way_keeps_its_place_next_to_connections_that_send_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 2)
    begun, ready = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        begun.set()
        await ready.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    bound = bind_http("127.0.0.1:0", "web.listen")
    server = HttpServer(slow, bound)
    await server.start()
    port = bound.getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD + b"Connection: close\r\n\r\n")
    await begun.wait()
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
    for other, _ in silent[:-1]:
        assert await end_of(other) == b""
    ready.set()
    assert (await end_of(reader)).startswith(b"HTTP/1.1 200")
    for _, one in [*silent, (reader, writer)]:
        one.close()
    await server.stop()
