"""`brim pub` and `brim sub` with MQTT 5, against our own broker: what goes in as properties comes out."""

import json
import subprocess
import sys

from tests.support.mqtt_served import served
from tests.support.project import ROOT
from tests.support.waiting import wait_until

BRIM = [sys.executable, "-m", "edge"]
TIMEOUT_S = 30


def brim(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BRIM, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_properties_go_from_pub_to_sub() -> None:
    with served() as there:
        at = ("--port", there.port, "--protocol", 5)
        reading = subprocess.Popen(
            [*BRIM, *map(str, ("sub", "plant/#", "--json", "-q", 1, "-C", 1, *at))],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        try:
            sessions = there.listener.broker.sessions
            wait_until(lambda: there.ask(lambda: any(its.subscriptions for its in sessions)))
            sent = brim(
                *(
                    "pub",
                    "plant/1",
                    "21.5",
                    "-q",
                    1,
                    "--user-property",
                    "unit=C",
                    "--user-property",
                    "at=x=y",
                ),
                *("--content-type", "text/plain", "--expiry", 60, "--response-topic", "answers", *at),
            )
            assert (sent.returncode, sent.stderr) == (0, "")
            line = reading.communicate(timeout=TIMEOUT_S)[0]
        finally:
            reading.kill()
            reading.communicate()
    message = json.loads(line)
    assert message.pop("properties") == {
        "message_expiry_interval_s": 60,
        "content_type": "text/plain",
        "response_topic": "answers",
        "user": [["unit", "C"], ["at", "x=y"]],
    }
    assert message == {"topic": "plant/1", "payload": "21.5", "qos": 1, "retain": False}


def test_properties_need_mqtt_5_and_a_value() -> None:
    older = brim("pub", "t", "x", "--expiry", 5)
    assert older.returncode == 2
    assert "add --protocol 5" in older.stderr
    bare = brim("pub", "t", "x", "--protocol", 5, "--user-property", "unit")
    assert bare.returncode == 2
    assert "'unit' is not KEY=VALUE" in bare.stderr
