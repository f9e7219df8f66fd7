"""Health pages, token and mutual TLS of the HTTP endpoint, and clients that attack it."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from edge.config.listener import Tls
from edge.config.loader import parse
from edge.errors import ConfigError, EdgeError
from edge.observe import http_endpoint
from edge.observe.health import health_page, ready_page, troubles
from edge.observe.http_endpoint import HttpEndpoint
from edge.observe.http_pages import pages
from edge.observe.http_token import TokenFile
from edge.transport.http_places import HttpConnection
from edge.transport.listen_sockets import bind_http
from edge.transport.tls import server_context
from tests.edge.observe.test_prometheus import status
from tests.support.waiting import until

TOKEN = "0123456789abcdef-secret"


@asynccontextmanager
async def serving(report: dict[str, Any] | None = None, **access: Any) -> AsyncIterator[HttpEndpoint]:
    found = status(watchdog={}, missing=[]) if report is None else report

    async def reported() -> dict[str, Any]:
        return found

    made = pages(reported, reported, lambda: found)
    endpoint = HttpEndpoint(bind_http("127.0.0.1:0", "metrics.listen"), made, **access)
    await endpoint.start()
    try:
        yield endpoint
    finally:
        await endpoint.stop()


def port_of(endpoint: HttpEndpoint) -> int:
    return int(endpoint.url.rpartition(":")[2].partition("/")[0])


async def get(endpoint: HttpEndpoint, path: str, *headers: str, tls: ssl.SSLContext | None = None) -> Any:
    """Status and body."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port_of(endpoint), ssl=tls, server_hostname="localhost" if tls else None
    )
    writer.write("\r\n".join([f"GET {path} HTTP/1.1", *headers, "", ""]).encode("latin-1"))
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    return file


# ---- health ----


@pytest.mark.parametrize(
    ("change", "part", "words", "blocks"),
    [
        ({"watchdog": {"stalled_s": 7.5}}, "mqtt", "not served for 7.5 s", True),
        ({"missing": [{"key": "log", "path": "/l", "remedy": "put it back"}]}, "log", "/l was removed", True),
        ({"missing": [{"key": "a-0", "path": "/r", "remedy": "put it back"}]}, "a-0", "put it back", False),
        ({"log": {"failures": 1, "reason": "EIO"}}, "log", "EIO", True),
        ({"log": {"read_only": True}}, "log", "free space", True),
        ({"log": {"broken_rings": {"a-0": "EIO"}}}, "log of ring a-0", "EIO", True),
        ({"log": {"maintenance": {"full_streams": ["press"]}}}, "stream press", "refused", True),
        ({"mqtt": {"spill_errno": 28}}, "spill file", "No space left", True),
        ({"mqtt": {"snapshot_failure": "No space left"}}, "session snapshot", "No space left", False),
        (
            {
                "bridges": [
                    {"name": "lake", "condition": "retrying", "last_error": "timed out", "remedy": "wait"}
                ]
            },
            "bridge lake",
            "retrying: timed out; wait",
            False,
        ),
    ],
)
def test_the_part_that_is_not_ready_is_named_with_its_reason(
    change: dict[str, Any], part: str, words: str, blocks: bool
) -> None:
    report = {"mqtt": {}, "bridges": [], "log": None, **change}
    (trouble,) = troubles(report)
    assert (trouble.part, trouble.blocks) == (part, blocks)
    assert words in trouble.why
    code, text = ready_page(report, detailed=True)
    shown = json.loads(text)
    assert (code, shown["ready"], shown["parts"][0]["part"]) == (503 if blocks else 200, not blocks, part)
    assert "parts" not in json.loads(ready_page(report, detailed=False)[1])


def test_a_broker_without_trouble_is_ready() -> None:
    report: dict[str, Any] = {
        "mqtt": {},
        "bridges": [{"name": "lake", "condition": "idle"}],
        "log": None,
        "watchdog": {},
    }
    assert ready_page(report, detailed=True) == (200, '{"ready": true, "parts": []}\n')
    assert health_page(report) == (200, '{"status": "ok"}\n')
    assert health_page({"watchdog": {"stalled_s": 9}})[0] == 503


# ---- token ----


async def test_metrics_need_the_token_and_health_shows_reasons_only_with_it(token: Path) -> None:
    report: dict[str, Any] = status(watchdog={}, missing=[])
    report["log"] |= {"failures": 1, "reason": "EIO"}
    async with serving(report, token=TokenFile(token)) as endpoint:
        bearer = f"Authorization: Bearer {TOKEN}"
        assert (await get(endpoint, "/metrics", bearer, "Host: plant-7.example"))[0] == 200
        assert "EIO" in (await get(endpoint, "/readyz", bearer))[1].decode()
        wrong = [
            [], ["Authorization: Bearer"], ["Authorization: Bearer x"], [f"Authorization: Basic {TOKEN}"],
            [f"Authorization: Bearer {TOKEN}x"], [f"Authorization: Bearer {TOKEN[:-1]}"], [bearer, bearer],
            ["Authorization: Bearer \xff\xfe"], [f"X: {TOKEN}"],
        ]  # fmt: skip
        for headers in wrong:
            assert (await get(endpoint, "/metrics", *headers))[0] == 401, headers
            assert await get(endpoint, "/readyz", *headers) == (503, b'{"ready": false}\n')
            assert await get(endpoint, "/healthz", *headers) == (200, b'{"status": "ok"}\n')


async def test_a_changed_token_is_in_effect_and_a_broken_file_lets_no_client_in(token: Path) -> None:
    async with serving(token=TokenFile(token)) as endpoint:
        await asyncio.to_thread(token.write_text, "another-token-of-the-week\n")
        assert (await get(endpoint, "/metrics", f"Authorization: Bearer {TOKEN}"))[0] == 401
        assert (await get(endpoint, "/metrics", "Authorization: Bearer another-token-of-the-week"))[0] == 200
        for spoil in (lambda: token.write_text("short"), token.unlink):
            spoil()
            assert (await get(endpoint, "/metrics", "Authorization: Bearer short"))[0] == 500


def test_the_token_is_compared_in_constant_time(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []

    def compare(first: bytes, second: bytes) -> bool:
        compared.append((len(first), len(second)))
        return first == second

    monkeypatch.setattr("hmac.compare_digest", compare)
    file = TokenFile(token)
    assert file.accepts([f"Bearer {TOKEN}"])
    assert not file.accepts(["Bearer x"])
    assert not file.accepts([])
    assert compared == [(32, 32)] * 3


@pytest.mark.parametrize("text", ["", "short\n", "\n" + TOKEN])
def test_a_token_file_without_a_token_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(EdgeError, match="at least 16"):
        TokenFile(tmp_path / "token")
    with pytest.raises(EdgeError, match="No such file"):
        TokenFile(tmp_path / "none")


# ---- TLS ----


def tls_files(directory: Path, authority: trustme.CA) -> Tls:
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    certificate.private_key_pem.write_to_path(directory / "key.pem")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    return Tls(directory / "cert.pem", directory / "key.pem", directory / "ca.pem")


async def test_mutual_tls_serves_clients_with_a_certificate_only(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = server_context(tls_files(tmp_path, authority))
    client, stranger, without = (ssl.create_default_context() for _ in range(3))
    for each in (client, stranger, without):
        authority.configure_trust(each)
    authority.issue_cert("prometheus").configure_cert(client)
    trustme.CA().issue_cert("prometheus").configure_cert(stranger)
    async with serving(tls=context) as endpoint:
        assert endpoint.url.startswith("https://")
        assert (await get(endpoint, "/metrics", "Host: plant-7.example", tls=client))[0] == 200
        for each in (stranger, without):
            with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
                await get(endpoint, "/metrics", tls=each)
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(endpoint))
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")  # no TLS
        assert b"HTTP" not in await reader.read()
        writer.close()
        assert (await get(endpoint, "/metrics", tls=client))[0] == 200


@pytest.mark.parametrize("name", ["cert.pem", "key.pem", "ca.pem"])
def test_a_certificate_of_garbage_is_an_error_that_names_the_file(tmp_path: Path, name: str) -> None:
    settings = tls_files(tmp_path, trustme.CA())
    (tmp_path / name).write_bytes(b"\x00\xff garbage \x1b[2J" * 100)
    with pytest.raises(EdgeError, match=name):
        server_context(settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('listen = "0.0.0.0:9464"', "is reached from other machines"),
        ('listen = "[::]:9464"\n[metrics.tls]\ncertificate_file = "c"\nkey_file = "k"', "is reached from"),
        (
            'listen = "0.0.0.0:1"\n[metrics.tls]\ncertificate_file = "c"\nkey_file = "k"\n'
            'client_ca_file = "a"\nrequire_client_certificate = false',
            "is reached from other machines",
        ),
        ('listen = "0.0.0.0:9464"\ntoken_file = "t"', ""),
        (
            'listen = "0.0.0.0:1"\n[metrics.tls]\ncertificate_file = "c"\nkey_file = "k"\n'
            'client_ca_file = "a"',
            "",
        ),
    ],
)
def test_other_machines_need_a_token_or_a_certificate(settings: str, said: str) -> None:
    if said:
        with pytest.raises(ConfigError, match=said):
            parse(f"[metrics]\n{settings}")
    else:
        assert parse(f"[metrics]\n{settings}").metrics.listen


# ---- attacks ----


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
async def test_slow_clients_are_bounded_in_time_and_number(
    secured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_endpoint, "REQUEST_S", 0.3)
    context = server_context(tls_files(tmp_path, trustme.CA())) if secured else None
    async with serving(tls=context, connections_max=8) as endpoint:
        slow = [await asyncio.open_connection("127.0.0.1", port_of(endpoint)) for _ in range(24)]
        for _, writer in slow:
            writer.write(b"G")
        for reader, writer in slow:
            with suppress(ConnectionResetError):
                assert b"200" not in await reader.read()  # the end comes: each was closed
            writer.close()
        await until(lambda: endpoint.connections == 0)


async def test_huge_headers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_endpoint, "REQUEST_S", 2.0)
    async with serving() as endpoint:
        assert (await get(endpoint, "/metrics", "X: " + "x" * 100_000))[0] == 400
        assert (await get(endpoint, "/" + "x" * 7000))[0] == 404
        assert (await get(endpoint, "/metrics", *["A: b"] * 1000))[0] == 200


async def test_a_client_that_does_not_read_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_endpoint, "REQUEST_S", 0.3)
    big = status(edge_id="x" * (32 << 20))
    async with serving(big) as endpoint:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(endpoint), limit=1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await until(lambda: endpoint.connections == 1)
        await until(lambda: endpoint.connections == 0)
        writer.close()
        del reader


@pytest.mark.parametrize("path", ["/metrics", "/readyz"])
async def test_one_report_answers_all_requests_that_wait_for_it(path: str) -> None:
    begun, ready = 0, asyncio.Event()

    async def reported() -> dict[str, Any]:
        nonlocal begun
        begun += 1
        await ready.wait()
        return status(watchdog={}, missing=[])

    endpoint = HttpEndpoint(
        bind_http("127.0.0.1:0", "metrics.listen"), pages(reported, reported, lambda: {"watchdog": {}})
    )
    await endpoint.start()
    requests = [asyncio.create_task(get(endpoint, path)) for _ in range(40)]
    await until(lambda: endpoint.connections == len(requests) and begun == 1)
    assert (await get(endpoint, "/healthz"))[0] == 200  # needs no report
    ready.set()
    assert {code for code, _ in await asyncio.gather(*requests)} == {200}
    assert begun == 1
    assert (await get(endpoint, path))[0] == 200
    assert begun == 2  # a new report, not the one of before
    await endpoint.stop()


async def test_a_request_under_way_keeps_its_place_next_to_connections_that_send_none() -> None:
    ready = asyncio.Event()

    async def reported() -> dict[str, Any]:
        await ready.wait()
        return status(watchdog={}, missing=[])

    bound = bind_http("127.0.0.1:0", "metrics.listen")
    made = pages(reported, reported, lambda: {"watchdog": {}})
    endpoint = HttpEndpoint(bound, made, connections_max=2)
    await endpoint.start()
    request = asyncio.create_task(get(endpoint, "/metrics"))
    await until(lambda: any(not it.waits() for it in connections_of(endpoint)))
    silent = [await asyncio.open_connection("127.0.0.1", port_of(endpoint)) for _ in range(4)]
    for reader, _ in silent[:-1]:
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
    ready.set()
    assert (await request)[0] == 200
    for _, writer in silent:
        writer.close()
    await endpoint.stop()


def connections_of(endpoint: HttpEndpoint) -> list[HttpConnection]:
    return [it for crowd in endpoint._served._places._by_origin.values() for it in crowd]


async def test_the_time_of_a_request_begins_before_its_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_endpoint, "REQUEST_S", 3_600.0)
    reader = asyncio.StreamReader()
    reader.feed_data(b"GET /metrics")
    assert await http_endpoint._request(reader, asyncio.get_running_loop().time()) is None
