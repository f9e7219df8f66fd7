"""amqtt's own plug-ins, unchanged, behind our decisions: a file, tokens, rules, an HTTP server."""

import json
import logging
import threading
import time
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jwt
import pytest

from edge.auth.amqtt_compat.adapter import PluginAdapter
from edge.auth.backend import AuthBackend
from edge.auth.errors import PluginError
from edge.auth.password_file import change_user
from edge.auth.password_hash import make_hash
from edge.cli import main
from edge.mqtt import ConnAck, Connect, Publish, ReasonCode, SubAck, Subscribe, Subscription
from tests.support.amqtt_plugins import access, client, login, plugins, said
from tests.support.mqtt_bench import Bench
from tests.support.waiting import wait_until

FILE = "amqtt.plugins.authentication.FileAuthPlugin"
TOPICS = "amqtt.plugins.topic_checking.TopicAccessControlListPlugin"
TOKEN = "amqtt.contrib.jwt.UserAuthJwtPlugin"
TOKEN_TOPICS = "amqtt.contrib.jwt.TopicAuthJwtPlugin"
HTTP = "amqtt.contrib.http.UserAuthHttpPlugin"
HTTP_TOPICS = "amqtt.contrib.http.TopicAuthHttpPlugin"
HERE = "tests.edge.auth.some_plugins"
KEY = "a key of at least thirty-two bytes"


def token(**claims):
    return jwt.encode(claims, KEY, "HS256").encode()


def test_the_password_file_plugin_runs_unchanged(tmp_path):
    change_user(tmp_path / "users", "ann", make_hash(b"secret"))
    with plugins((FILE, {"password_file": str(tmp_path / "users")})) as made:
        assert login(made, client(), b"secret")
        assert not login(made, client(), b"wrong")
        assert not login(made, client("bob"), b"secret")
        assert not login(made, client(), b"\xff")
        assert made.access is None


@pytest.mark.filterwarnings("ignore:The 'acl' option is deprecated")  # and there is no other one
def test_the_topic_plugin_runs_unchanged():
    options = {"publish_acl": {"ann": ["ann/#"]}, "acl": {"ann": ["ann/#", "all/+"]}}
    with plugins((TOPICS, options)) as made:
        rules = access(made)
        assert made.authenticator is None
        assert said(rules.may_publish(client(), "ann/x"))
        assert not said(rules.may_publish(client(), "all/x"))
        assert not said(rules.may_publish(client("bob"), "ann/x"))
        assert said(rules.may_subscribe(client(), "all/x"))
        assert said(rules.may_subscribe(client(), "$share/g/all/x"))
        assert not said(rules.may_subscribe(client(), "#"))
        assert rules.may_receive(client(), "any/thing")  # it has no rules for receiving: all of it


def test_tokens_let_in_and_say_what_is_allowed():
    claims = {"publish_claim": "out", "subscribe_claim": "ask", "receive_claim": "in"}
    auth = (TOKEN, {"secret_key": KEY, "user_claim": "name"})
    with plugins(auth, (TOKEN_TOPICS, {"secret_key": KEY, **claims})) as made:
        good = token(name="ann", out=["a/#"], ask=["b/+"], **{"in": ["b/1"]})
        assert not login(made, client("bob"), good)
        assert not login(made, client(), b"no token")
        assert not login(made, client(), None)  # abstains, and no other plug-in answers
        rules = access(made)
        assert not said(rules.may_publish(client(), "a/1"))  # no client of that name has logged in
        assert login(made, client(), good)
        assert said(rules.may_publish(client(), "a/1"))
        assert not said(rules.may_publish(client(client_id="d"), "a/1"))
        assert said(rules.may_subscribe(client(), "b/+"))
        assert rules.may_receive(client(), "b/1")
        assert not rules.may_receive(client(), "b/2")
        assert login(made, client(), token(name="ann", **{"in": ["b/2"]}))
        assert rules.may_receive(client(), "b/2")  # by the new token
        assert not rules.may_receive(client(), "b/1")


class Server:
    """An HTTP server that decides: `allowed` has what it says yes to; others get no, `broken` status 500."""

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []
        self.go = threading.Event()
        self.go.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append(asked)
                outer.go.wait(10)
                yes = asked.get("password") == "secret" or asked.get("topic") in {"ok", "ok/1", "ok/2"}
                self.send_response(500 if asked.get("topic") == "broken" else 200 if yes else 403)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = False
        self.options = {
            "host": "127.0.0.1",
            "port": self.server.server_port,
            "request_method": "post",
            "response_mode": "status",
        }
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.go.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def server():
    made = Server()
    yield made
    made.close()


def test_an_http_server_decides_and_its_enumerations_can_be_written_as_words(server):
    with plugins((HTTP, server.options), (HTTP_TOPICS, server.options)) as made:
        assert login(made, client(), b"secret")
        assert not login(made, client(), b"wrong")
        rules = access(made)
        assert said(rules.may_publish(client(), "ok"))
        assert not said(rules.may_publish(client(), "no"))
        assert not said(rules.may_publish(client(), "broken"))
        assert server.asked[0] == {"username": "ann", "password": "secret", "client_id": "c"}
        assert [asked["acc"] for asked in server.asked[2:]] == [2, 2, 2]
        assert said(rules.may_subscribe(client(), "ok/1"))  # without wildcards: whether it may receive, too
        assert [asked["acc"] for asked in server.asked[5:]] == [4, 1]
        assert rules.may_receive(client(), "ok/1")
        assert len(server.asked) == 7  # and that is known now


def test_a_server_that_is_slow_holds_nobody_up_and_its_yes_is_told_later(server):
    news = threading.Event()
    with plugins((HTTP_TOPICS, server.options), on_news=news.set) as made:
        rules = access(made)
        server.go.clear()
        assert [rules.may_receive(client(), topic) for topic in ("ok/1", "ok/2", "no")] == [False] * 3
        wait_until(lambda: len(server.asked) == 3)
        assert [rules.may_receive(client(), topic) for topic in ("ok/1", "no")] == [False] * 2
        assert len(server.asked) == 3  # no question is repeated
        assert not news.is_set()
        server.go.set()
        assert news.wait(10)
        wait_until(lambda: rules.may_receive(client(), "ok/1") and rules.may_receive(client(), "ok/2"))
        assert not rules.may_receive(client(), "no")


@pytest.mark.parametrize(
    ("path", "options", "complaint"),
    [
        ("no.such.Plugin", {}, "no.such.Plugin cannot be imported"),
        (f"{FILE}s", {}, "has no FileAuthPlugins"),
        ("amqtt.plugins.logging_amqtt.PacketLoggerPlugin", {}, "implements neither authenticate() nor"),
        ("amqtt.plugins.sys.broker.BrokerSysPlugin", {}, "looks into amqtt's own broker"),
        ("amqtt.session.Session", {}, "is not a plug-in class of amqtt"),
        (TOPICS, {"acl": 1}, "its options: wrong value type"),
        (f"{HERE}.Notes", {}, 'its options: missing value for field "word"'),
        (FILE, {"pasword_file": "x"}, "its options: can not match"),
        (FILE, {"password_file": "/no/such/file"}, "cannot be created: PasswordFileError"),
        (f"{HERE}.NoCoroutine", {}, "authenticate is not a coroutine"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named_and_leaves_nothing_running(path, options, complaint):
    with pytest.raises(PluginError) as caught:
        PluginAdapter([(path, options)])
    assert path in str(caught.value)
    assert complaint in str(caught.value)


def test_check_names_a_plugin_that_cannot_be_used(tmp_path, capsys):
    config = tmp_path / "brim.toml"
    config.write_text('[[auth.plugin]]\nclass = "no.such.Plugin"\n')
    assert main(["check", str(config)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{config}: ")
    assert "no.such.Plugin cannot be imported" in line


def test_one_yes_and_no_no_lets_in(caplog):
    yes, no, none, fails = (f"{HERE}.{name}" for name in ("Yes", "No", "Abstains", "Fails"))
    for wanted, allowed in [
        ((yes,), True),
        ((yes, none), True),
        ((none,), False),
        ((yes, no), False),
        ((yes, fails), False),
    ]:
        with plugins(*((path, {}) for path in wanted)) as made:
            assert login(made, client(), b"x") is allowed, wanted
            topic_answers = allowed and none not in wanted  # in amqtt no plug-in may abstain from topics
            assert said(access(made).may_publish(client(), "t")) is topic_answers, wanted
            assert access(made).may_receive(client(), "t") is topic_answers, wanted
    assert "plug-in failed" in caplog.text


def test_when_a_login_is_refused_tells_nothing_of_why(monkeypatch, tmp_path):
    """Of two who asked before, neither has heard anything when somebody later is already in."""
    monkeypatch.setattr("edge.auth.amqtt_compat.adapter.REFUSAL_S", 3600.0)
    change_user(tmp_path / "users", "ann", make_hash(b"secret", "pbkdf2"))
    change_user(tmp_path / "others", "bob", make_hash(b"secret"))
    guard = AuthBackend(tmp_path / "users")
    guard.load(PluginAdapter([(FILE, {"password_file": str(tmp_path / "others")})]))
    try:
        asked = guard.authenticator
        assert asked
        refused = [asked.authenticate(client(name), b"wrong") for name in ("ann", "bob", "eve")]
        assert said(asked.authenticate(client("bob"), b"secret"))
        assert said(asked.authenticate(client("ann"), b"secret"))
        assert [isinstance(one, Future) and one.done() for one in refused] == [False] * 3
    finally:
        guard.close()


def test_logins_from_one_address_are_not_all_that_plugins_are_asked(monkeypatch, caplog):
    monkeypatch.setattr("edge.auth.amqtt_compat.adapter.REQUESTS_BY_ADDRESS_MAX", 5)
    monkeypatch.setattr("edge.auth.amqtt_compat.adapter.REFUSAL_S", 0.001)
    with plugins((f"{HERE}.Waits", {})) as made:
        asked = made.authenticator
        assert asked
        waiting = [asked.authenticate(client(address=f"192.0.2.66:{port}"), b"x") for port in range(9)]
        assert [said(one) for one in waiting[5:]] == [False] * 4
        other = asked.authenticate(client("go", address="192.0.2.7:1"), b"x")  # all continue
        assert [said(one) for one in (*waiting[:5], other)] == [True] * 6
        assert login(made, client("go", address="192.0.2.66:1"), b"x")
        assert made.refused_busy == 4
    assert "clients refused refused=1 address=192.0.2.66" in caplog.text


def test_plugins_see_who_asks_and_hear_of_start_and_end(caplog):
    with caplog.at_level(logging.INFO), plugins((f"{HERE}.Notes", {"word": "hello"})) as made:
        assert login(made, client("ann", "id-7", "10.0.0.7:5000"), b"secret")
    assert "hello ann secret id-7 10.0.0.7 5000" in caplog.text
    assert [text for text in caplog.messages if text.startswith("on_")] == [
        "on_broker_pre_start",
        "on_broker_post_start",
        "on_broker_pre_shutdown",
        "on_broker_post_shutdown",
    ]


def test_who_is_in_the_file_is_judged_by_it_and_others_by_plugins(tmp_path):
    change_user(tmp_path / "users", "ann", make_hash(b"secret", "pbkdf2"))
    (tmp_path / "acl").write_text("user ann\ntopic a/#\nuser bob\ntopic b/#\n")
    guard = AuthBackend(tmp_path / "users", tmp_path / "acl")
    guard.load(PluginAdapter([(f"{HERE}.Yes", {})]))
    changes = list[bool]()
    try:
        asked = guard.authenticator
        assert asked
        assert not said(asked.authenticate(client("ann"), b"x"))
        assert said(asked.authenticate(client("ann"), b"secret"))
        assert said(asked.authenticate(client("bob"), b"x"))
        rules = guard.access
        assert rules
        assert said(rules.may_publish(client("bob"), "b/1"))
        assert not said(rules.may_publish(client("bob"), "a/1"))
        assert rules.may_receive(client("ann"), "a/1")
        guard.apply(guard.read(), changes.append)
        assert changes == [True], "the file has not changed, but plug-ins may decide otherwise now"
    finally:
        guard.close()


def test_a_broker_asks_plugins_and_clients_wait_for_the_answer():
    token_topics = {"secret_key": KEY, "publish_claim": "p", "subscribe_claim": "s", "receive_claim": "r"}
    wanted = [(TOKEN, {"secret_key": KEY, "user_claim": "name"}), (TOKEN_TOPICS, token_topics)]
    with plugins(*wanted) as made, Bench(authenticator=made.authenticator, access=made.access) as bench:

        def settled(done) -> None:
            def advanced() -> bool:
                wire.raw(b"")  # what the broker did not read while a plug-in had not answered
                return bench.settle() >= 0 and done()

            wait_until(advanced)

        wire, other = bench.wire(), bench.wire()
        password = token(name="ann", p=["a/+"], s=["a/#"], r=["a/1"])
        wire.send(Connect("c", username="ann", password=password))
        other.send(Connect("d", username="ann", password=b"x"))
        settled(lambda: not other.is_open)
        assert other.received() == [ConnAck(False, ReasonCode.BAD_USER_NAME_OR_PASSWORD)]
        settled(lambda: bench.broker.sessions.get("c") is not None)
        assert wire.received() == [ConnAck()]
        wire.send(Subscribe(1, (Subscription("a/#"), Subscription("#"))))
        packets: list[object] = []
        settled(lambda: packets.__iadd__(wire.received()))
        assert isinstance(packets[0], SubAck)
        assert [code >= 0x80 for code in packets[0].reason_codes] == [False, True]
        wire.send(*(Publish(topic, b"x") for topic in ("b/1", "a/2", "a/1")))
        settled(lambda: len(bench.records()) == 2)
        assert bench.records() == [("a/2", b"x"), ("a/1", b"x")]
        settled(lambda: len(packets.__iadd__(wire.received())) > 1)
        assert [packet.topic for packet in packets[1:] if isinstance(packet, Publish)] == ["a/1"]


def test_a_plugin_that_never_answers_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("edge.auth.amqtt_compat.adapter.ANSWER_S", 0.05)
    began = time.monotonic()
    with plugins((f"{HERE}.Sleeps", {})) as made:
        assert not login(made, client(), b"x")
        assert not access(made).may_receive(client(), "t")
    assert time.monotonic() - began < 60  # not the hour it would take
