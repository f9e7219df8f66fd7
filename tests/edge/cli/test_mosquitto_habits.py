"""`brim pub` and `brim sub` take the command lines of mosquitto_pub and mosquitto_sub."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from edge.broker.broker_limits import BrokerLimits
from edge.cli import main
from edge.cli.exit_status import Exit
from edge.cli.message_format import message_format
from edge.errors import EdgeError
from edge.local.arrivals import Arrival
from edge.mqtt import Publish, Subscribe, Subscription
from tests.support.mqtt_served import Served, served
from tests.support.project import ROOT
from tests.support.waiting import PATIENCE_S, wait_until

Run = Callable[..., bytes]


@pytest.fixture
def there() -> Iterator[Served]:
    with served(limits=BrokerLimits(sys_interval_s=10), version="brim 9") as broker:
        yield broker


@pytest.fixture
def run(there: Served, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Run a command line of Mosquitto against the broker; returns its output."""

    def run(line: str, status: int = Exit.OK) -> bytes:
        words = shlex.split(line.replace("mosquitto_", ""))
        assert main([*words, "-p", str(there.port)]) == status
        return capfdbinary.readouterr().out

    return run


def of_users(there: Served, count: int = 1) -> list[tuple[str, bytes]]:
    """The records that are not of $SYS, once there are so many: QoS 0 is not acknowledged."""

    def records() -> list[tuple[str, bytes]]:
        return [record for record in there.records() if not record[0].startswith("$SYS")]

    wait_until(lambda: len(records()) >= count)
    return records()


# The examples of the manuals mosquitto_pub(1) and mosquitto_sub(1), 2.0; -C ends them.
PUBLISH = {
    "mosquitto_pub -t sensors/temperature -m 32 -q 1": ("sensors/temperature", b"32"),
    'mosquitto_pub -h 127.0.0.1 -p 1885 -t sensors/temperature -m "1266193804 32"': (
        "sensors/temperature",
        b"1266193804 32",
    ),
    'mosquitto_pub -r -t switches/kitchen_lights/status -m "on"': ("switches/kitchen_lights/status", b"on"),
}
SUBSCRIBE = {
    "mosquitto_sub -t sensors/temperature -q 1": rb"32\n",
    "mosquitto_sub -t sensors/machines/+/temperature/+": rb"41\n",
    r"mosquitto_sub -v -t \$SYS/#": rb"\$SYS/broker/[a-z/ ]+ .*\n",
    "mosquitto_sub -F '@Y-@m-@dT@H:@M:@S@z : %t : %x' -t '#'": (
        rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} : [a-z/0-9]+ : [0-9a-f]+\n"
    ),
    "mosquitto_sub -F '%@s.@N : %r : %q : %m : %l' -q 2 -t '#'": rb"\d{10}\.\d{9} : 1 : [01] : 0 : 2\n",
    r"mosquitto_sub -F '\e[92m%t \e[96m%p\e[0m' -q 2 -t '#'": rb"\x1b\[92m[a-z/0-9]+ \x1b\[96m\d+\x1b\[0m\n",
}


@pytest.mark.parametrize("line", PUBLISH)
def test_an_example_of_mosquitto_pub_publishes(line: str, run: Run, there: Served) -> None:
    run(line)
    assert of_users(there) == [PUBLISH[line]]


def test_files_and_lines_are_published_as_mosquitto_pub_does(there: Served) -> None:
    def run(line: str, stdin: bytes) -> None:
        words = ["pub", *shlex.split(line), "-p", str(there.port)]
        command = [sys.executable, "-m", "edge", *words]
        subprocess.run(command, input=stdin, check=True, cwd=ROOT, timeout=PATIENCE_S)

    run("-t my/topic -f ./LICENSE", b"")
    run("-t my/topic -s", b"two\nlines\n")
    run("-t sensors/cc128 -l", b"one\ntwo\n")
    run("-t my/topic -n", b"")
    license_text = (ROOT / "LICENSE").read_bytes()
    lines = [("sensors/cc128", b"one"), ("sensors/cc128", b"two"), ("my/topic", b"")]
    assert of_users(there, 5) == [("my/topic", license_text), ("my/topic", b"two\nlines\n"), *lines]


@pytest.mark.parametrize("line", SUBSCRIBE)
def test_an_example_of_mosquitto_sub_shows(line: str, run: Run, there: Served) -> None:
    for topic, payload in (("sensors/temperature", "32"), ("sensors/machines/a/temperature/b", "41")):
        run(f"mosquitto_pub -r -q 1 -t {topic} -m {payload}")
    assert re.fullmatch(SUBSCRIBE[line], run(line + " -C 1"))


def test_identity_version_keep_alive_and_will_reach_the_broker(run: Run, there: Served) -> None:
    run("mosquitto_pub -t a -m x -u ann -P secret -i press-7 -V mqttv5 -k 7 --repeat 2 --repeat-delay 0.01")
    assert of_users(there, 2) == [("a", b"x"), ("a", b"x")]
    with there.client("watcher") as watcher:
        watcher.send(Subscribe(1, (Subscription("gone"),)))
        watcher.packet()
        will = "--will-topic gone --will-payload killed --will-qos 1"
        words = shlex.split(f"sub -t a -i sub {will} -p {there.port}")
        with subprocess.Popen([sys.executable, "-m", "edge", *words], cwd=ROOT) as process:
            while there.ask(lambda: there.listener.broker.sessions.get("sub")) is None:
                assert process.poll() is None
            process.kill()
        assert watcher.publish().payload == b"killed"


def test_a_url_has_the_broker_and_the_topic(there: Served, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    broker = f"mqtt://ann:secret@127.0.0.1:{there.port}"
    assert main(["pub", "-L", f"{broker}/plant/press/7", "-m", "21.5", "-r"]) == Exit.OK
    assert main(["sub", "-L", f"{broker}/plant/#", "-C", "1", "-v"]) == Exit.OK
    assert capfdbinary.readouterr().out == b"plant/press/7 21.5\n"
    assert main(["pub", "-L", "http://127.0.0.1/a", "-m", "x"]) == Exit.USAGE


def test_retained_messages_are_left_out_shown_alone_and_removed(run: Run, there: Served) -> None:
    for topic in ("bbc/one", "bbc/two", "bbc/three"):
        run(f"mosquitto_pub -r -q 1 -t {topic} -m {topic[4:]}")
    assert run("mosquitto_sub -t bbc/# -T bbc/one -T bbc/two -C 1") == b"three\n"
    assert run("mosquitto_sub -t bbc/# -R -W 0.5", Exit.TIMEOUT) == b""
    assert run("mosquitto_sub -t bbc/# --retained-only --remove-retained -T bbc/one -C 2 -N") in {
        b"twothree",
        b"threetwo",
    }
    assert run("mosquitto_sub -t bbc/# -v -W 0.5", Exit.TIMEOUT) == b"bbc/one one\n"


def test_a_live_message_is_not_among_the_retained(there: Served) -> None:
    words = shlex.split(f"sub -t live -i live --retained-only -W 2 -p {there.port}")
    with subprocess.Popen(
        [sys.executable, "-m", "edge", *words], cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        while there.ask(lambda: not getattr(there.listener.broker.sessions.get("live"), "subscriptions", ())):
            assert process.poll() is None
        with there.client("publisher") as publisher:
            publisher.send(Publish("live", b"now"))
        assert process.communicate(timeout=PATIENCE_S)[0] == b""
        assert process.returncode == Exit.TIMEOUT


@pytest.mark.parametrize(
    "line",
    [
        "pub -t a -m x --no-such-option",
        "pub -h",
        "pub -m x",
        "pub -t a",
        "pub -t a -m x -n",
        "pub -t a b c",
        "pub -t a -m x -V mqttv4",
        "sub",
        "sub -t",
        "sub -t a -q 3",
    ],
)
def test_a_wrong_option_names_the_help_and_ends_with_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == Exit.USAGE
    first, remedy = capsys.readouterr().err.splitlines()
    assert first.startswith(f"brim {line[:3]}: ")
    assert remedy == f"  `brim {line[:3]} --help` shows the arguments"


@pytest.mark.parametrize("verb", ["status", "bridge status"])
def test_an_option_with_a_typo_names_the_right_one(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*verb.split(), "--jsn"])
    assert ended.value.code == Exit.USAGE
    assert capsys.readouterr().err.splitlines() == [
        f"brim {verb}: unrecognized arguments: --jsn; did you mean --json?",
        f"  `brim {verb} --help` shows the arguments",
    ]


def test_help_of_pub_is_help_and_not_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pub", "--help"])
    assert ended.value.code == 0
    assert "-h, --host" in re.sub(r" HOST", "", capsys.readouterr().out)


# ---- -F ---------------------------------------------------------------------------------------------

PROPERTIES = {
    "content_type": "text/plain",
    "correlation_data": "Yw==",
    "message_expiry_interval_s": 9,
    "response_topic": "r/1",
    "subscription_identifiers": (3, 4),
    "user": (("colour", "red"), ("b", "2")),
}
FACTS = {"qos": 1, "retain": True, "timestamp_ns": 1_700_000_000_123_456_789}
MESSAGE = Arrival("plant/press", b"\x1b[2J\xff", {**FACTS, "properties": PROPERTIES})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t|%15t|%-15t|%.5t|%8.5t", b"plant/press|    plant/press|plant/press    |plant|   plant"),
        ("%p %x %X %l %05l %-5l|", b"\x1b[2J\xff 1b5b324aff 1B5B324AFF 5 00005 5    |"),
        ("%q %r %m %A. %%p @@p", b"1 1 0 . %p @p"),
        ("%C %D %E %P %R %S %F.", b"text/plain c 9 colour:red b:2 r/1 3,4 ."),
        (r"\\ \0 \a \e \n \r \t \v", b"\\ \0 \a \x1b \n \r \t \v"),
        ("%U @s @N", b"1700000000.123456789 1700000000 123456789"),
        ("größe", "größe".encode()),
    ],
)
def test_a_sequence_is_replaced(text: str, expected: bytes) -> None:
    assert message_format(text, safe=False)(MESSAGE) == expected


def test_on_a_terminal_values_are_escaped_and_the_format_is_not() -> None:
    assert message_format(r"\e[1m%p", safe=True)(MESSAGE) == rb"x[1m\x1b[2J\xff".replace(b"x[1m", b"\x1b[1m")


def test_json_has_all_fields_and_may_nest_the_payload() -> None:
    shown = json.loads(message_format("%j", safe=False)(Arrival("a", b'{"t": 1}', FACTS)))
    assert (shown["topic"], shown["payload"], shown["retain"]) == ("a", '{"t": 1}', 1)
    nested = message_format("%J", safe=False)
    assert json.loads(nested(Arrival("a", b'{"t": 1}', FACTS)))["payload"] == {"t": 1}
    for hostile in (b"{", b"[" * 100_000, b"\xff"):
        with pytest.raises(EdgeError, match="not JSON"):
            nested(Arrival("a", hostile, FACTS))


@pytest.mark.parametrize("text", ["%z", "a%", "@", r"\x41", "\\", "%9999999t", "%5", "%-"])
def test_an_unknown_sequence_is_an_error(text: str) -> None:
    with pytest.raises(EdgeError, match="-F"):
        message_format(text, safe=False)
