"""Records of a local producer that wait in its ring for a kept session, over a kill -9 of the broker."""

from pathlib import Path

from brim import producer
from edge.mqtt import ConnAck, Connect, Disconnect, Publish, SubAck, Subscribe, Subscription
from tests.support.brim_process import BrimProcess
from tests.support.mqtt_socket import RawClient

FEW_TOPICS = "[limits]\ntopics_max = 64\n"
COUNT = 5


def write(broker: BrimProcess) -> None:
    """Write the records."""
    with producer("cam", runtime_dir=broker.runtime_dir) as writer:
        for number in range(COUNT):
            assert writer.publish(b"%d" % number, f"cam/{number}", flags=1) is not None


def test_their_topics_are_not_the_first_that_a_full_table_forgets_after_a_restart(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with BrimProcess(runtime_directory, tmp_path, FEW_TOPICS, bridge=False) as broker:
        with RawClient(broker.port) as client, RawClient(broker.port) as present:
            client.send(Connect("c", clean_start=False), Subscribe(1, (Subscription("cam/#", 1),)))
            assert isinstance(client.packet(), ConnAck)
            assert isinstance(client.packet(), SubAck)
            client.send(Disconnect())
            present.send(Connect("present"), Subscribe(1, (Subscription("cam/#"),)))
            assert isinstance(present.packet(), ConnAck)
            assert isinstance(present.packet(), SubAck)
            write(broker)
            assert [bytes(present.publish().payload) for _ in range(COUNT)] == [b"0", b"1", b"2", b"3", b"4"]
        broker.kill()
        broker.start()
        with RawClient(broker.port) as publisher:
            publisher.send(Connect("p"), *(Publish(f"other/{number}", b"") for number in range(500)))
            assert isinstance(publisher.packet(), ConnAck)
            publisher.ping()
        with RawClient(broker.port) as client:
            client.send(Connect("c", clean_start=False))
            assert client.packet() == ConnAck(True)
            received = [client.publish() for _ in range(COUNT)]
        assert [(it.topic, bytes(it.payload)) for it in received] == [
            (f"cam/{number}", b"%d" % number) for number in range(COUNT)
        ]
