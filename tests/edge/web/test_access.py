"""Access to the console by the list of OWASP: users, sessions, CSRF, hosts, headers, bounds, audit log."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.auth.password_file import change_user, delete_user
from edge.auth.password_hash import make_hash
from edge.mqtt import Connect, PingReq, Publish, encode
from edge.web.action_api import ACTIONS
from edge.web.app import ENDPOINTS
from edge.web.guard import BODY_MAX_BYTES, SECURITY_HEADERS
from edge.web.login_limit import FAILURES
from edge.web.roles import ConsoleRole
from tests.support.abuse import V5, connected
from tests.support.brim_process import BrimProcess
from tests.support.directories import memory_directory
from tests.support.waiting import wait_until
from tests.support.web_console import PASSWORD, Visitor, console, write_users

BODIES: dict[str, dict[str, Any]] = {
    "client/disconnect": {"client_id": "stays"},
    "client/forget": {"client_id": "stays"},
    "retained/clear": {"filter": "#"},
    "publish": {"topic": "kept", "payload": "changed", "retain": True},
    "bridge/pause": {"bridge": "lake"},
    "bridge/resume": {"bridge": "lake"},
    "bridge/skip": {"bridge": "lake"},
    "group/reset": {"group": "g", "to": "oldest"},
    "group/forget": {"group": "g"},
    "reload": {},
    "sql": {"query": "SELECT 1"},
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrimProcess]:
    directory = tmp_path_factory.mktemp("web")
    secret = '[[stream]]\nname = "fast"\ntopics = ["fast/#"]\n'
    with memory_directory() as runtime, BrimProcess(runtime, directory, secret) as broker:
        yield broker


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("users") / "web.users"


@pytest.fixture(scope="module")
def served(broker: BrimProcess, users: Path) -> Iterator[tuple[str, Any]]:
    with console(broker.runtime_dir, *write_users(users)) as (url, child):
        yield url, child


@pytest.fixture
def visitor(served: tuple[str, Any]) -> Visitor:
    return Visitor(served[0])


def signed_in(url: str, user: str, password: str = PASSWORD) -> Visitor:
    visitor = Visitor(url)
    answer = visitor.sign_in(user, password)
    assert answer.status == 200, answer.body
    return visitor


# ---- access control ----


def test_every_endpoint_but_the_session_needs_a_session(visitor: Visitor) -> None:
    visitor.csrf = visitor.get("session")["csrf"]
    for endpoint in ENDPOINTS:
        if endpoint.role is None:
            continue
        name = endpoint.path.removeprefix("/api/v1/")
        if endpoint.method == "GET":
            answer = visitor.send("GET", endpoint.path)
        else:
            answer = visitor.post(name, BODIES[name])
        assert answer.status == 401, endpoint.path


@pytest.mark.parametrize("user", ["eve", "bob"])
def test_a_role_that_is_not_sufficient_changes_nothing(user: str, broker: BrimProcess, served: Any) -> None:
    visitor = signed_in(served[0], user)
    role = {"eve": ConsoleRole.VIEWER, "bob": ConsoleRole.OPERATOR}[user]
    refused = [it for it in ACTIONS if it.role is not None and it.role > role]
    assert len(refused) == {"eve": 10, "bob": 4}[user]
    with connected(broker.port, "stays", V5) as client:
        client.sendall(encode(Publish("kept", b"as is", retain=True), V5))
        for endpoint in refused:
            name = endpoint.path.removeprefix("/api/v1/")
            answer = visitor.post(name, BODIES[name])
            assert (answer.status, user in answer.content["error"]) == (403, True), name
        client.sendall(encode(PingReq(), V5))
        assert client.recv(2) == b"\xd0\x00"
    assert [row["payload"] for row in visitor.get("retained", filter="kept")["rows"]] == ["as is"]
    assert visitor.get("bridges")["bridges"][0]["condition"] != "paused"


def test_each_action_is_done_for_its_role_and_written_to_the_audit_log(
    broker: BrimProcess, served: Any
) -> None:
    url, child = served
    operator, admin = signed_in(url, "bob"), signed_in(url, "ann")
    with connected(broker.port, "plc", V5) as client:
        assert operator.post("client/disconnect", {"client_id": "plc"}).status == 200
        assert client.recv(99)[:1] == b"\xe0"
    with connected(broker.port, "away", V5) as client:
        assert operator.post("client/forget", {"client_id": "away"}).status == 200
    wait_until(lambda: operator.get("clients", text="away")["total"] == 0)
    assert operator.post("client/forget", {"client_id": "away"}).status == 409
    letter = {"topic": "by/hand", "payload": "aGk=", "encoding": "base64", "qos": 1, "retain": True}
    assert operator.post("publish", letter).content == {"stored": 1}
    assert [row["payload"] for row in operator.get("retained", filter="by/#")["rows"]] == ["hi"]
    assert operator.post("publish", letter | {"payload": "?"}).status == 400
    assert operator.post("publish", letter | {"topic": "by/#"}).status == 400
    assert operator.post("publish", letter | {"payload": "x" * 49_153}).status == 400
    assert operator.post("retained/clear", {"filter": "by/#"}).content == {"count": 1, "refused": 0}
    assert operator.get("retained", filter="by/#")["rows"] == []
    assert operator.post("bridge/pause", {"bridge": "lake"}).status == 200
    wait_until(lambda: operator.get("bridges")["bridges"][0]["condition"] == "paused")
    assert operator.post("bridge/resume", {"bridge": "lake"}).status == 200
    assert admin.post("bridge/skip", {"bridge": "lake"}).content["effects"]
    assert operator.post("bridge/pause", {"bridge": "other"}).status == 409
    assert admin.post("group/reset", {"group": "no-group", "to": "oldest"}).status == 409
    assert admin.post("group/forget", {"group": "no-group"}).status == 409
    assert admin.post("reload").content == {"applied": [], "failed": [], "needs_restart": []}
    assert admin.post("session", method="DELETE").status == 200
    log = child.log_until("console log-out user=ann")
    for line in (
        "action=disconnect user=bob role=operator", "action=forget user=bob", "action=publish user=bob",
        'action="clear retained" user=bob', 'action="pause bridge" user=bob',
        'action="skip records" user=ann',
        "action=reload user=ann", "console log-in user=bob role=operator peer=127.0.0.1:",
    ):  # fmt: skip
        assert line in log, line


def test_the_configuration_is_shown_without_secrets(tmp_path: Path) -> None:
    with memory_directory() as runtime:
        to = "s3://key:hush@bucket/lake"
        bridge = (
            f'[[bridge]]\nname = "s3"\nto = "{to}"\nin_broker = false\noptions = {{ secret_key = "hush" }}\n'
        )
        with (
            BrimProcess(runtime, tmp_path, bridge, bridge=False),
            console(runtime, *write_users(tmp_path / "users")) as (url, _),
        ):
            settings_seen = signed_in(url, "eve").send("GET", "/api/v1/settings")
    assert settings_seen.status == 200
    assert b"hush" not in settings_seen.body
    rows = {row["name"]: row for row in settings_seen.content["settings"]}
    assert rows["bridge.s3.options.secret_key"]["value"] == "(hidden)"
    assert (rows["edge_id"]["value"], rows["limits.topics_max"]["is_default"]) == ("here", True)


def test_log_lines_are_for_operators(served: Any) -> None:
    for user, status in (("eve", 403), ("bob", 200), ("ann", 200)):
        answer = signed_in(served[0], user).send("GET", "/api/v1/log-lines")
        assert answer.status == status, user
        assert (b"ready edge_id=here" in answer.body) == (status == 200)
    lines = signed_in(served[0], "bob").get("log-lines", after=answer.content["last"])["lines"]
    assert lines == []


# ---- sessions ----


def test_the_session_cookie_is_not_readable_and_not_sent_by_other_sites(visitor: Visitor) -> None:
    answer = visitor.sign_in("eve")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path=/" in cookie
    assert "Domain" not in cookie
    assert len(visitor.cookie.partition("=")[2]) >= 43


def test_a_log_in_gives_a_new_token_and_ends_the_session_before(visitor: Visitor) -> None:
    visitor.get("session")
    before = visitor.cookie
    visitor.sign_in("eve")
    first = visitor.cookie
    assert first != before
    visitor.sign_in("eve")
    assert visitor.cookie != first
    assert visitor.send("GET", "/api/v1/clients", Cookie=first).status == 401
    assert visitor.send("GET", "/api/v1/clients", Cookie=before).status == 401
    assert visitor.get("clients")


def test_a_log_out_ends_the_session_on_the_server(visitor: Visitor) -> None:
    visitor.sign_in("eve")
    cookie = visitor.cookie
    assert visitor.post("session", method="DELETE").status == 200
    assert visitor.send("GET", "/api/v1/clients", Cookie=cookie).status == 401


def test_a_removed_user_and_a_changed_password_end_the_session(users: Path, served: Any) -> None:
    for name in ("tim", "tom"):
        change_user(users, name, make_hash(b"pw", "pbkdf2"))
    count = len(users.read_text().splitlines())
    # a log-in of a user who is not known yet would count against the limit of failed log-ins
    wait_until(lambda: Visitor(served[0]).get("session") and f"users={count}" in served[1].log())
    tim, tom = signed_in(served[0], "tim", "pw"), signed_in(served[0], "tom", "pw")
    change_user(users, "tim", make_hash(b"other", "pbkdf2"))
    delete_user(users, "tom")
    wait_until(lambda: tim.send("GET", "/api/v1/clients").status == 401)
    wait_until(lambda: tom.send("GET", "/api/v1/clients").status == 401)
    assert signed_in(served[0], "tim", "other").get("session")["role"] == "viewer"


def test_a_broken_user_file_keeps_the_users_as_they_were(users: Path, served: Any) -> None:
    text = users.read_text()
    users.write_text("eve\n")
    try:
        wait_until(lambda: Visitor(served[0]).get("session") and "web users not read" in served[1].log())
        assert signed_in(served[0], "eve").get("clients")
    finally:
        users.write_text(text)


# ---- cross-site requests ----


def test_a_change_needs_the_csrf_token_of_its_own_cookie(served: Any) -> None:
    ann, bob = signed_in(served[0], "ann"), signed_in(served[0], "bob")
    for token in ("", "0" * 64, bob.csrf, ann.csrf[:-1], "\u00e9".encode().decode("latin-1")):
        answer = ann.post("reload", X_CSRF_Token=token)
        assert (answer.status, "CSRF" in answer.content["error"]) == (403, True)
    assert ann.post("reload", Cookie="", X_CSRF_Token=ann.csrf).status == 403
    assert ann.post("session", method="DELETE", X_CSRF_Token="").status == 403
    assert ann.post("reload").status == 200


def test_a_log_in_from_another_site_is_refused(visitor: Visitor) -> None:
    visitor.csrf = visitor.get("session")["csrf"]
    credentials = {"user": "eve", "password": PASSWORD}
    assert visitor.post("session", credentials, X_CSRF_Token="").status == 403
    for headers in (
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example"},
        {"Origin": "null"}, {"Origin": f"http://127.0.0.1:{visitor.port + 1}"},
    ):  # fmt: skip
        assert visitor.post("session", credentials, **headers).status == 403, headers
    assert visitor.post("session", credentials, **{"Content-Type": "text/plain"}).status == 415
    own = {"Origin": f"http://127.0.0.1:{visitor.port}", "Sec-Fetch-Site": "same-origin"}
    assert visitor.post("session", credentials, **own).status == 200


def test_a_name_of_another_host_is_refused(visitor: Visitor) -> None:
    for host in ("evil.example", "evil.example:80", "", "127.0.0.1.evil.example", "10.1.1.1", "[::2]"):
        answer = visitor.send("GET", "/", Host=host)
        assert answer.status == 421, host
        assert b"<script" not in answer.body
    for host in (f"localhost:{visitor.port}", "127.0.0.1", "[::1]:1"):
        assert visitor.send("GET", "/", Host=host).status == 200
    raw = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n"
    assert not raw_answer(visitor, raw).startswith(b"HTTP/1.1 200")


def raw_answer(visitor: Visitor, request: bytes) -> bytes:
    with socket.create_connection((visitor.host, visitor.port), 30) as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        data = b""
        while part := client.recv(1 << 16):
            data += part
        return data


# ---- guesses of passwords ----


def test_failed_log_ins_are_limited_and_name_neither_user_nor_password(
    broker: BrimProcess, tmp_path: Path
) -> None:
    with console(broker.runtime_dir, *write_users(tmp_path / "users")) as (url, child):
        visitor = Visitor(url)
        bodies = set()
        for number in range(FAILURES):
            answer = visitor.sign_in("eve" if number % 2 else "no-such-user", f"secret-guess-{number}")
            bodies.add((answer.status, answer.body))
        assert len(bodies) == 1
        assert bodies.pop()[0] == 401
        answer = visitor.sign_in("eve", PASSWORD)
        assert (answer.status, int(answer.headers["Retry-After"]) <= 61) == (429, True)
        log = child.log_until("console log-in limited")
        assert log.count("console log-in refused") == FAILURES
        assert "secret-guess" not in log


# ---- answers ----


@pytest.mark.parametrize(
    "path", ["/", "/app.js", "/style.css", "/api/v1/session", "/api/v1/nothing", "/nothing"]
)
def test_every_answer_has_the_headers_of_security(path: str, visitor: Visitor) -> None:
    headers = visitor.send("GET", path).headers
    for name, value in SECURITY_HEADERS.items():
        assert headers.get_all(name) == [value]
    assert "Server" not in headers
    policy = headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert headers["Cache-Control"] in ("no-store", "no-cache")


def test_pages_name_no_other_host_and_have_no_inline_script_or_style() -> None:
    pages = Path(__file__).parents[3] / "edge/web/pages"
    for path in pages.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text.replace("//", "//") or "http" not in text, path
        for banned in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            'onclick="',
            'style="',
        ):
            assert banned not in text, (path, banned)


def test_a_file_outside_of_the_pages_is_not_served(visitor: Visitor) -> None:
    for path in (
        "/../../../etc/passwd", "/%2e%2e/%2e%2e/edge/web/app.py", "/..%2fapp.py", "//etc/passwd", "/app.py",
        "/.%00./x", "/pages/app.js", "/" + "a" * 8_000,
    ):  # fmt: skip
        answer = visitor.send("GET", path)
        assert answer.status == 404, path


def test_an_unknown_method_is_refused(visitor: Visitor) -> None:
    for method, path in (
        ("PUT", "/api/v1/session"),
        ("DELETE", "/"),
        ("TRACE", "/"),
        ("OPTIONS", "/api/v1/clients"),
    ):
        answer = visitor.send(method, path, b"{}", Content_Type="application/json")
        assert answer.status == 405, (method, path)
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_a_defect_gives_no_details_away(visitor: Visitor) -> None:
    for body in (
        b"",
        b"[1",
        b"\xff",
        b'{"user": 1}',
        b"[" * 50_000,
        b'{"user": "a", "password": "b", "more": 1}',
    ):
        visitor.csrf = visitor.get("session")["csrf"]
        answer = visitor.send(
            "POST", "/api/v1/session", body, Content_Type="application/json", X_CSRF_Token=visitor.csrf
        )
        assert answer.status == 400, body[:20]
        assert b"Traceback" not in answer.body
        assert b"/edge/" not in answer.body


# ---- bounds ----


def test_bodies_and_headers_are_bounded(visitor: Visitor) -> None:
    visitor.sign_in("bob")
    assert (
        visitor.send(
            "POST", "/api/v1/publish", b"x" * (BODY_MAX_BYTES + 1), Content_Type="application/json"
        ).status
        == 413
    )
    head = b"POST /api/v1/publish HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    chunk = b"%x\r\n" % (BODY_MAX_BYTES + 1) + b"x" * (BODY_MAX_BYTES + 1) + b"\r\n0\r\n\r\n"
    assert raw_answer(visitor, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk).startswith(
        b"HTTP/1.1 413"
    )
    assert raw_answer(visitor, head + b"Content-Length: -1\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert raw_answer(visitor, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 100_000).startswith(
        b"HTTP/1.1 400"
    )
    both = b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /"
    assert raw_answer(visitor, head + both).count(b"HTTP/1.1 200") == 0
    assert visitor.get("session")["user"] == "bob"


def test_hostile_names_stay_data(broker: BrimProcess, visitor: Visitor) -> None:
    """Client identifiers and topics come from devices."""
    visitor.sign_in("eve")
    name = "</script><svg onload=alert(1)>\u202e"
    with socket.create_connection(("127.0.0.1", broker.port)) as client:
        client.sendall(encode(Connect(name)))
        assert client.recv(4)
        wait_until(lambda: visitor.get("clients", text="onload")["total"] == 1)
    answer = visitor.send("GET", "/api/v1/clients")
    assert answer.headers["Content-Type"] == "application/json"
    assert json.loads(answer.body)
