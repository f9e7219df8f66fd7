"""brim retained clear: messages whose topics no ring can store any more do not stop it."""

from pathlib import Path

import pytest

from edge.cli import main
from edge.cli.exit_status import Exit
from edge.mqtt import PubAck, Publish
from tests.support.brim_process import BrimProcess
from tests.support.mqtt_socket import SocketClient

SMALL = '\n[[stream]]\nname = "s"\ntopics = ["m/#"]\nring_bytes = 65536\n'
LONG = [f"m/{number}/" + "x" * 40_000 for number in range(3)]


def retain(broker: BrimProcess, *topics: str) -> None:
    with SocketClient(broker.port, "c") as client:
        for number, topic in enumerate(topics, 1):
            client.send(Publish(topic, b"x", 1, retain=True, packet_id=number))
            assert isinstance(client.receive(), PubAck)


def test_all_messages_but_those_without_a_ring_for_their_topic_are_cleared(
    runtime_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = BrimProcess(runtime_directory, tmp_path, bridge=False)
    with broker:
        retain(broker, "a", LONG[0], "b", *LONG[1:], "z/1", "z/2")
    broker.config.write_text(broker.config.read_text() + SMALL)
    words = ["--runtime-dir", str(runtime_directory)]
    with broker:
        assert main(["retained", "clear", "#", "z/#", LONG[2], *words]) == Exit.INCOMPLETE
        out, err = capsys.readouterr()
        assert out.splitlines()[0] == "4 retained messages of # cleared"
        assert "3 messages not cleared" in err
        assert all(topic[:200] in err and topic not in err for topic in LONG)
        assert main(["retained", "ls", "--json", *words]) == 0
        out = capsys.readouterr().out
        assert all(out.count(topic) == 1 for topic in LONG)
        assert out.count("\n") == len(LONG)
