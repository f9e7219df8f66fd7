"""A client of a Bench that is away, and comes back to its session."""

from edge.mqtt import Connect, Disconnect
from tests.support.mqtt_bench import Bench, Wire


def away(bench: Bench, client_id: str, topic: str = "t/#", *, qos: int = 1) -> None:
    """Subscribes, and disconnects."""
    client = bench.client(client_id, clean_start=False)
    client.subscribe(topic, qos=qos)
    client.send(Disconnect())


def back(bench: Bench, client_id: str) -> Wire:
    """Connects again; its packets have not been read yet."""
    wire = bench.wire()
    wire.send(Connect(client_id, clean_start=False))
    return wire


def dropped(bench: Bench, client_id: str) -> dict[str, int]:
    """Messages that it has lost, by cause."""
    (row,) = [it for it in bench.stats.clients(bench.broker.sessions) if it.client_id == client_id]
    return row.dropped
