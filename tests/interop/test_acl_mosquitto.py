"""The same ACL file, read by Mosquitto: what it delivers is what our rules allow.

Denying patterns are left out: Mosquitto looks at them after the permissions of the user, we before, as its
manual says.
"""

import itertools
import random
import shutil
import subprocess
from functools import partial

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from edge.auth.acl_file import parse_rules
from edge.auth.interfaces import ClientInfo
from tests.support import mosquitto
from tests.support.waiting import wait_until

LEVELS = ("a", "b", "ann", "c1", "$s", "")
TOPICS = sorted(
    {"/".join(levels) for size in (1, 2, 3) for levels in itertools.product(LEVELS[: 6 - size], repeat=size)}
    | {"a/", "/a", "a//b"}
)


def some_file(random_: random.Random) -> str:
    lines = []
    for _ in range(random_.randint(4, 14)):
        is_pattern = random_.random() < 0.3
        levels = random_.choices(("a", "b", "ann", "+", *(("%u", "%c") if is_pattern else ("$s",))), k=3)
        levels = levels[: random_.randint(1, 3)] + (["#"] if random_.random() < 0.3 else [])
        access = random_.choice(["read", "write", "readwrite", "", *([] if is_pattern else ["deny"])])
        word = "pattern" if is_pattern else "topic"
        lines.append(" ".join(filter(None, (word, access, "/".join(levels)))))
    lines[len(lines) // 3 : len(lines) // 3] = ["user ann", "topic a/#", "topic deny a/+/b"]
    return "\n".join(lines) + "\n"


class Peer:
    """A client of Mosquitto that gathers what it gets."""

    def __init__(self, port: int, name: str | None, client_id: str) -> None:
        self.got: set[tuple[str, str]] = set()
        self.subscribed = self.ended = False
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id)
        if name is not None:
            self.client.username_pw_set(name, name)
        self.client.on_message = lambda _, __, it: self.got.add((it.topic, it.payload.decode()))
        self.client.on_subscribe = lambda *_: setattr(self, "subscribed", True)
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        self.client.subscribe([("#", 1), ("$s/#", 1)])
        wait_until(lambda: self.subscribed)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.mosquitto
@pytest.mark.parametrize("seed", range(3))
def test_mosquitto_delivers_what_our_rules_allow(tmp_path, seed):
    if mosquitto.BINARY is None or shutil.which("mosquitto_passwd") is None:
        pytest.skip("needs mosquitto: apt-get install mosquitto")
    text = some_file(random.Random(seed)) + "user root\ntopic #\ntopic $s/#\n"
    (tmp_path / "acl").write_text(text)
    for create, name in ((["-c"], "ann"), ([], "root")):
        command = ["mosquitto_passwd", *create, "-b", tmp_path / "users", name, name]
        subprocess.run(command, check=True, capture_output=True)
    rules = parse_rules(text, "acl")
    files = (f"acl_file {tmp_path / 'acl'}", f"password_file {tmp_path / 'users'}")
    with mosquitto.running(tmp_path, *files) as broker:
        names: list[tuple[str | None, str]] = [("ann", "c1"), (None, "c2"), ("root", "c3")]
        peers = {who: Peer(broker.port, *who) for who in names}
        try:
            for (_, client_id), peer in peers.items():
                sent = [peer.client.publish(topic, client_id, qos=1) for topic in TOPICS]
                sent[-1].wait_for_publish(10)
            wait_until(lambda: all(info.is_published() for info in sent))
            peers["root", "c3"].client.publish("a", "end", qos=1)
            everything = peers["root", "c3"]
            wait_until(lambda: ("a", "end") in everything.got)
            facts = {who: ClientInfo(who[1], who[0], "", 0, who[0]) for who in peers}
            expected = {
                who: {
                    (topic, by[1])
                    for topic in TOPICS
                    for by in peers
                    if rules.may_publish(facts[by], topic) and rules.may_receive(facts[who], topic)
                }
                for who in peers
            }
            for who, peer in peers.items():
                wait_until(partial(expected[who].issubset, peer.got))
                assert {it for it in peer.got if it[1] != "end"} == expected[who], (text, who)
        finally:
            for peer in peers.values():
                peer.close()
