"""mosquitto_pub, mosquitto_sub and mosquitto_rr against the broker on a real port."""

import contextlib
import subprocess
from collections.abc import Iterator
from functools import partial

import pytest

from edge.mqtt import Properties, Publish, Subscribe, Subscription, Version
from tests.support.mqtt_served import Served
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.mosquitto


@contextlib.contextmanager
def mosquitto_sub(there: Served, *options: str, name: str = "sub") -> Iterator[subprocess.Popen[str]]:
    """A running mosquitto_sub that has subscribed."""
    command = ["mosquitto_sub", "-p", str(there.port), "-i", name, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        while not there.ask(partial(has_subscribed, there, name)):
            assert process.poll() is None, "mosquitto_sub has ended"
        yield process
    finally:
        process.kill()
        process.communicate()


def has_subscribed(there: Served, client_id: str) -> bool:
    session = there.listener.broker.sessions.get(client_id)
    return session is not None and bool(session.subscriptions)


def mosquitto_pub(there: Served, *options: str) -> None:
    subprocess.run(["mosquitto_pub", "-p", str(there.port), *options], check=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
def test_mosquitto_publishes_to_mosquitto_at_every_qos(there: Served, version: str) -> None:
    with mosquitto_sub(there, "-V", version, "-t", "a/+", "-q", "2", "-v", "-C", "3") as sub:
        for qos in "012":
            mosquitto_pub(there, "-V", version, "-t", f"a/{qos}", "-m", f"hello {qos}", "-q", qos)
        out, _ = sub.communicate(timeout=PATIENCE_S)
    assert out.splitlines() == ["a/0 hello 0", "a/1 hello 1", "a/2 hello 2"]
    assert there.records() == [(f"a/{qos}", b"hello %d" % qos) for qos in range(3)]


def test_mosquitto_gets_what_was_retained(there: Served) -> None:
    mosquitto_pub(there, "-t", "state/door", "-m", "open", "-r", "-q", "1")
    mosquitto_pub(there, "-t", "state/lamp", "-m", "on", "-r")
    mosquitto_pub(there, "-t", "state/lamp", "-n", "-r")
    command = ["mosquitto_sub", "-p", str(there.port), "-t", "state/#", "-v", "-C", "1", "--retained-only"]
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.stdout == "state/door open\n"


def test_a_mosquitto_that_is_killed_has_its_will_published_and_harms_nobody(there: Served) -> None:
    with there.client("watcher") as watcher:
        watcher.send(Subscribe(1, (Subscription("gone"), Subscription("t"))))
        watcher.packet()
        with mosquitto_sub(there, "-t", "t", "--will-topic", "gone", "--will-payload", "killed") as sub:
            sub.kill()
            sub.wait()
        assert watcher.publish().payload == b"killed"
        mosquitto_pub(there, "-t", "t", "-m", "still here")
        assert watcher.publish().payload == b"still here"


def test_mosquitto_comes_back_to_its_session(there: Served) -> None:
    command = ["mosquitto_sub", "-p", str(there.port), "-i", "sub", "-c", "-q", "1", "-t", "t/#", "-v"]
    subprocess.run([*command, "-E"], check=True, timeout=PATIENCE_S)  # subscribes and leaves
    for i in range(3):
        mosquitto_pub(there, "-t", f"t/{i}", "-m", f"{i}", "-q", "1")
    run = subprocess.run(
        [*command, "-C", "3"], check=True, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert run.stdout == "t/0 0\nt/1 1\nt/2 2\n"


def test_mosquitto_sends_many_lines_and_all_arrive(there: Served) -> None:
    lines = "".join(f"line {i}\n" for i in range(2_000))
    with mosquitto_sub(there, "-t", "lines", "-q", "1", "-C", "2000") as sub:
        subprocess.run(
            ["mosquitto_pub", "-p", str(there.port), "-t", "lines", "-q", "1", "-l"],
            input=lines, text=True, check=True, timeout=PATIENCE_S,
        )  # fmt: skip
        out, _ = sub.communicate(timeout=PATIENCE_S)
    assert out == lines


def run(*command: str) -> str:
    """Standard output of a command."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    return done.stdout


def test_a_request_of_mosquitto_rr_is_answered(there: Served) -> None:
    """Response topic and correlation data travel both ways."""
    port = str(there.port)
    with there.client("server", version=Version.V5) as server:
        server.send(Subscribe(1, (Subscription("ask"),)))
        server.packet()
        command = ["mosquitto_rr", "-p", port, "-t", "ask", "-e", "answer/7", "-m", "how much?"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
            question = server.publish()
            assert (bytes(question.payload), question.properties.response_topic) == (b"how much?", "answer/7")
            back = Properties(correlation_data=question.properties.correlation_data)
            server.send(Publish("answer/7", b"a lot", properties=back))
            assert asking.communicate(timeout=PATIENCE_S)[0] == "a lot\n"


def test_properties_of_mosquitto_pub_reach_mosquitto_sub(there: Served) -> None:
    options = ("-V", "mqttv5", "-t", "t", "-C", "1", "-F", "%P|%C|%R|%D|%p")
    with mosquitto_sub(there, *options) as sub:
        given = {"user-property": ("colour", "red"), "content-type": ("text/plain",)}
        given |= {"response-topic": ("r/1",), "correlation-data": ("c",)}
        words = [word for name, values in given.items() for word in ("-D", "publish", name, *values)]
        mosquitto_pub(there, "-V", "mqttv5", "-t", "t", "-m", "hot", *words)
        out, _ = sub.communicate(timeout=PATIENCE_S)
    assert out.strip() == "colour:red|text/plain|r/1|c|hot"


def test_two_mosquittos_share_a_subscription(there: Served) -> None:
    shared = ("-V", "mqttv5", "-t", "$share/g/t", "-q", "1", "-C", "10")
    with mosquitto_sub(there, *shared, name="one") as one, mosquitto_sub(there, *shared, name="two") as two:
        lines = [f"line {i}" for i in range(20)]
        command = ["mosquitto_pub", "-p", str(there.port), "-t", "t", "-q", "1", "-l"]
        subprocess.run(command, input="\n".join(lines), text=True, check=True, timeout=PATIENCE_S)
        got = [process.communicate(timeout=PATIENCE_S)[0].splitlines() for process in (one, two)]
    assert sorted(got[0] + got[1]) == sorted(lines)


def test_a_session_of_mosquitto_lives_as_long_as_it_asked_for(there: Served) -> None:
    port = str(there.port)
    again = ("mosquitto_sub", "-p", port, "-V", "mqttv5", "-i", "s", "-c", "-q", "1", "-t", "t", "-x", "60")
    run(*again, "-E")
    mosquitto_pub(there, "-t", "t", "-m", "kept", "-q", "1")
    assert run(*again, "-C", "1") == "kept\n"
