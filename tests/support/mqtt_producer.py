"""A ring that another process might write, attached to a Bench's engine as a local producer's is."""

from collections.abc import Iterator
from contextlib import contextmanager

from ringbuf import Ring
from tests.support.mqtt_bench import Bench


class Producer:
    """`source` is the engine's number of it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.path = bench.directory / "t@cam"
        self.ring = Ring.create(self.path, capacity_bytes=1 << 16, epoch=3)
        self.writer = self.ring.writer()
        self.attached = Ring.attach(self.path)
        self.reader = self.attached.reader(start="latest", verify=True)
        self.source = bench.engine.add_reader(self.reader)
        bench.settle()

    def publish(self, *messages: tuple[str, bytes], flags: int = 0, properties: bytes = b"") -> None:
        """A record each of (topic, payload); `properties` with their length in front."""
        for topic, payload in messages:
            put = self.writer.publish(payload, key=topic, flags=flags, properties=properties or None)
            assert put is not None
        self.bench.engine.read_producers()
        self.bench.settle()

    def spoil(self, old: bytes, new: bytes) -> None:
        """Overwrite bytes of a record that is already there, as a hostile process may."""
        with open(f"{self.path}.ring", "r+b") as file:
            at = file.read().rindex(old)
            file.seek(at)
            file.write(new)

    def close(self) -> None:
        """Take it away."""
        self.bench.engine.remove_ring(self.source)
        self.reader.close()
        self.attached.close()
        self.ring.close()
        self.ring.unlink()
        del self.reader, self.writer


@contextmanager
def producer_of(bench: Bench) -> Iterator[Producer]:
    """Until the end of the block."""
    producer = Producer(bench)
    try:
        yield producer
    finally:
        producer.close()
