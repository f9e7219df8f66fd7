"""Links between two processes, one for each library of `./dev bench ring`, each in its fastest known way.

A Link sends and receives whole messages. Its methods are plain attributes where that saves a call, so that
the library is timed and not this file. `send(payload)` copies bytes in, `poll()` returns a message or None at
once, `wait()` blocks for one. `touch(message)` reads its first and last byte as a user of that library would.
`fill(size)` sends a message of `size` bytes of which it writes the first and the last, without a copy if the
library can.

Tried and slower: iceoryx2 by slices instead of types of a fixed size; its memory_view; zenoh by callback;
pyzmq with asyncio, or with copy=False below 64 KiB.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

PEERS = ("iceoryx2", "zenoh", "pyzmq", "pipe")
SMALL = 64
SIZES = (SMALL, 4 << 10, 64 << 10, 4 << 20)
BATCH = 256
WRITERS = 32  # of merge_32
HOUR_MS = 3_600_000


class Brim:
    """Two rings. The left side writes "ab", the right side "ba"; both read with a blocking reader."""

    def __init__(self, left: bool, directory: Path) -> None:
        from ringbuf import Ring

        mine, self._theirs = ("ab", "ba") if left else ("ba", "ab")
        self._directory, self._left = directory, left
        self._ring = Ring.create(directory / mine, capacity_bytes=32 << 20, epoch=1)
        self._rate = Ring.create(directory / f"{mine}-rate", capacity_bytes=2 << 20, epoch=1)
        self._writer = self._ring.writer(when_full="block", queue_timeout_ms=HOUR_MS)
        self._rate_writer = self._rate.writer(when_full="block", queue_timeout_ms=HOUR_MS)
        self._merge = [
            Ring.create(directory / f"merge-{number}", capacity_bytes=256 << 10, epoch=1)
            for number in range(WRITERS if left else 0)
        ]
        self.merge_floods = [
            ring.writer(when_full="block", queue_timeout_ms=HOUR_MS).publish for ring in self._merge
        ]

    def connect(self) -> None:
        """Attach to the ring of the other side."""
        from ringbuf import Ring

        self._other = Ring.attach(self._directory / self._theirs)
        self._reader = self._other.reader(blocks_writer=True)
        self._sleeper = self._other.reader(blocks_writer=False, spin_ns=0)
        self._rate_other = Ring.attach(self._directory / f"{self._theirs}-rate")
        self._rate_reader = self._rate_other.reader(blocks_writer=True)
        self._merge_others = [
            Ring.attach(self._directory / f"merge-{number}") for number in range(0 if self._left else WRITERS)
        ]
        self._merge_readers = [ring.reader(blocks_writer=True) for ring in self._merge_others]
        self.send = self._writer.publish
        self.poll = self._reader.poll
        self.wait = self._sleeper.__next__
        self.flood, self.drain = self._rate_writer.publish, self._rate_reader.poll
        self.flood_many, self.drain_many = self._rate_writer.publish_many, self._rate_reader.read_many

    def drain_merge(self) -> int:
        """Read a run of each ring."""
        got = 0
        for reader in self._merge_readers:
            batch = reader.read_many(BATCH)
            for _record in batch:
                pass
            got += len(batch)
        return got

    def settle(self, waiting: bool) -> None:
        """Nothing to choose."""

    def rest(self) -> None:
        """End a case: the unused reader must neither block the writer nor be lapped."""
        self._sleeper.seek_latest()
        self._reader.seek_latest()

    def touch(self, message: Any) -> int:
        """First and last byte."""
        ends: int = message[0] + message[-1]
        return ends

    def filler(self, size: int) -> Callable[[int], None]:
        """Fill in place."""
        room: Callable[[int], Any] = self._writer.claim  # it blocks: there is always a claim

        def fill(_: int) -> None:
            claim = room(size)
            claim[0], claim[-1] = 1, 2
            claim.commit()

        return fill

    def close(self) -> None:
        """Remove both rings."""
        for ring in (self._other, self._rate_other, *self._merge_others):
            ring.close()
        for ring in (self._ring, self._rate, *self._merge):
            ring.close()
            ring.unlink()


class Iceoryx2:
    """A publish-subscribe service for each size and direction, and an event for waiting."""

    def __init__(self, left: bool, directory: Path) -> None:
        import iceoryx2

        self._x = iceoryx2
        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        self._node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
        self._prefix = f"brim-bench-{directory.name}"
        self._out, self._in = ("ab", "ba") if left else ("ba", "ab")
        self._types = {size: self._type(size) for size in SIZES}
        self._services = [self._service(size, way) for size in SIZES for way in ("ab", "ba")]
        events = [self._event(way) for way in ("ab", "ba")]
        self._out_event, self._in_event = events if left else events[::-1]

    @staticmethod
    def _type(size: int) -> Any:
        fields = [("data", ctypes.c_uint8 * size)]
        return type(f"Block{size}", (ctypes.Structure,), {"_fields_": fields})

    def _service(self, size: int, way: str) -> tuple[int, str, Any]:
        name = self._x.ServiceName.new(f"{self._prefix}/{way}/{size}")
        builder = self._node.service_builder(name).publish_subscribe(self._types[size])
        depth = 1024 if size == SMALL else 4
        builder = builder.enable_safe_overflow(False).subscriber_max_buffer_size(depth)
        return size, way, builder.open_or_create()

    def _event(self, way: str) -> Any:
        return (
            self._node.service_builder(self._x.ServiceName.new(f"{self._prefix}/{way}"))
            .event()
            .open_or_create()
        )

    def connect(self) -> None:
        """Both ends of every service."""
        strategy = self._x.BackpressureStrategy.RetryUntilDelivered
        self._subscribers, self._publishers = {}, {}
        for size, way, service in self._services:
            if way == self._in:
                self._subscribers[size] = service.subscriber_builder().create()
            else:
                builder = service.publisher_builder().backpressure_strategy(strategy)
                self._publishers[size] = builder.create()
        self._notifier = self._out_event.notifier_builder().create()
        self._listener = self._in_event.listener_builder().create()
        self.poll = self.drain = self._subscribers[SMALL].receive

    def settle(self, waiting: bool) -> None:
        """Choose the way of sending."""
        self.send = self._send_and_notify if waiting else self._send
        self.flood = self._send

    def _send(self, payload: bytes) -> bool:
        sample = self._publishers[SMALL].loan_uninit()
        ctypes.memmove(sample.payload_ptr, payload, SMALL)
        sample.assume_init().send()
        return True

    def _send_and_notify(self, payload: bytes) -> None:
        self._send(payload)
        self._notifier.notify()

    def wait(self) -> Any:
        """Wait for the event, then take the sample."""
        while (sample := self.poll()) is None:
            self._listener.blocking_wait()
        return sample

    def receive_of(self, size: int) -> Callable[[], Any]:
        """The poll for messages of one size."""
        receive: Callable[[], Any] = self._subscribers[size].receive
        return receive

    def toucher(self, size: int) -> Callable[[Any], int]:
        """First and last byte of messages of one size."""
        array = ctypes.c_uint8 * size

        def touch(sample: Any) -> int:
            data = array.from_address(sample.payload_ptr)
            return data[0] + data[size - 1]

        return touch

    def filler(self, size: int) -> Callable[[int], None]:
        """Fill in place."""
        array, loan = ctypes.c_uint8 * size, self._publishers[size].loan_uninit

        def fill(_: int) -> None:
            sample = loan()
            data = array.from_address(sample.payload_ptr)
            data[0], data[size - 1] = 1, 2
            sample.assume_init().send()

        return fill

    def close(self) -> None:
        """Close everything; iceoryx2 removes unused services."""
        for name in (
            "poll",
            "drain",
            "send",
            "flood",
            "_subscribers",
            "_publishers",
            "_notifier",
            "_listener",
        ):
            self.__dict__.pop(name, None)
        del self._services, self._out_event, self._in_event, self._node


class Zenoh:
    """Two sessions on loopback: low latency for round trips, the ordinary one (batches) for the others."""

    def __init__(self, left: bool, directory: Path) -> None:
        import zenoh

        self._zenoh, self._left = zenoh, left
        zenoh.init_log_from_env_or("error")
        self._out, self._in = ("ab", "ba") if left else ("ba", "ab")
        ports = directory / "zenoh-ports"
        if left:
            ports.write_text(" ".join(map(str, free_ports(2))))
        self._ports_file = ports

    def _session(self, port: int, low_latency: bool) -> Any:
        config = self._zenoh.Config()
        config.insert_json5("mode", '"peer"')
        config.insert_json5("scouting/multicast/enabled", "false")
        place = "listen/endpoints" if self._left else "connect/endpoints"
        config.insert_json5(place, f'["tcp/127.0.0.1:{port}"]')
        if not self._left:
            config.insert_json5("listen/endpoints", "[]")
        config.insert_json5("transport/shared_memory/enabled", "false" if low_latency else "true")
        if low_latency:
            config.insert_json5("transport/unicast/lowlatency", "true")
            config.insert_json5("transport/unicast/qos/enabled", "false")
        return self._zenoh.open(config)

    def connect(self) -> None:
        """Sessions, subscribers, publishers."""
        ports = [int(text) for text in self._ports_file.read_text().split()]
        fifo = self._zenoh.handlers.FifoChannel
        block = self._zenoh.CongestionControl.BLOCK
        self._sessions = [self._session(ports[0], True), self._session(ports[1], False)]
        quick, plain = self._sessions
        self._quick = quick.declare_subscriber(f"bench/quick/{self._in}", fifo(1024))
        self._plain = plain.declare_subscriber(f"bench/plain/{self._in}", fifo(1024))
        self._large = plain.declare_subscriber(f"bench/large/{self._in}", fifo(4))
        publisher = quick.declare_publisher(
            f"bench/quick/{self._out}", congestion_control=block, express=True
        )
        flooder = plain.declare_publisher(f"bench/plain/{self._out}", congestion_control=block)
        self._filler = plain.declare_publisher(
            f"bench/large/{self._out}", congestion_control=block, express=True
        )
        self._memory = self._zenoh.shm.ShmProvider.default_backend(64 << 20)
        self._policy = self._zenoh.shm.BlockOn(self._zenoh.shm.GarbageCollect())
        self._keep = publisher, flooder
        self.send, self.poll, self.wait = publisher.put, self._quick.try_recv, self._quick.recv
        self._put_plain, self.drain = flooder.put, self._plain.recv

    def flood(self, payload: bytes) -> bool:
        """As put; blocks when the other side is behind."""
        self._put_plain(payload)
        return True

    def settle(self, waiting: bool) -> None:
        """Nothing to choose."""

    def touch(self, sample: Any) -> int:
        """A copy is its only way to the bytes."""
        data = bytes(sample.payload)
        return data[0] + data[-1]

    def receive_of(self, size: int) -> Callable[[], Any]:
        """The poll for large messages."""
        receive: Callable[[], Any] = self._large.try_recv
        return receive

    def fill(self, size: int) -> None:
        """Fill in its shared memory."""
        memory = self._memory.alloc(size, policy=self._policy)
        memory[0], memory[size - 1] = 1, 2
        self._filler.put(memory)

    def close(self) -> None:
        """Close the sessions."""
        for session in self._sessions:
            session.close()


class PyZmq:
    """PAIR over ipc://, one pair in total: a PAIR goes both ways."""

    def __init__(self, left: bool, directory: Path) -> None:
        import zmq

        self._zmq = zmq
        self._context = zmq.Context()
        self._left, self._endpoint = left, f"ipc://{directory}/zmq"
        self._pair = self._socket(zmq.PAIR, "pair", left)
        self._push = self._socket(zmq.PUSH, "push", left) if left else None
        self._pull = None if left else self._socket(zmq.PULL, "push", left)
        merge = [self._socket(zmq.PUSH, "merge", False) for _ in range(WRITERS if left else 0)]
        self.merge_floods = [it.send for it in merge]
        self._merge: Any = None if left else self._socket(zmq.PULL, "merge", True)
        self._buffers = {size: bytearray(size) for size in SIZES}

    def _socket(self, kind: int, name: str, bind: bool) -> Any:
        opened = self._context.socket(kind)
        opened.setsockopt(self._zmq.LINGER, 0)
        (opened.bind if bind else opened.connect)(f"{self._endpoint}-{name}")
        return opened

    def connect(self) -> None:
        """Sockets are connected already."""
        self.send, self.wait = self._pair.send, self._pair.recv
        if self._push is not None:
            self._flood = self._push.send
        if self._pull is not None:
            self.drain = self._pull.recv

    def drain_merge(self) -> int:
        """One message: a PULL takes from its writers in turn."""
        self._merge.recv()
        return 1

    def flood(self, payload: bytes) -> bool:
        """Blocks at the high-water mark."""
        self._flood(payload)
        return True

    def settle(self, waiting: bool) -> None:
        """Nothing to choose."""

    def poll(self) -> Any:
        """Poll without the exception that NOBLOCK costs when no message is there."""
        if self._pair.getsockopt(self._zmq.EVENTS) & self._zmq.POLLIN:
            return self._pair.recv(self._zmq.NOBLOCK)
        return None

    def receive_of(self, size: int) -> Callable[[], Any]:
        """Without a copy, for large messages."""
        pair, zmq = self._pair, self._zmq

        def poll() -> Any:
            if pair.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                return pair.recv(zmq.NOBLOCK, copy=False)
            return None

        return poll

    def touch(self, message: Any) -> int:
        """First and last byte."""
        view = memoryview(message)
        return view[0] + view[-1]

    def fill(self, size: int) -> None:
        """Send one buffer again and again: in a round trip the old one has been read."""
        buffer = self._buffers[size]
        buffer[0], buffer[-1] = 1, 2
        self._pair.send(buffer, copy=size < 64 << 10)

    def close(self) -> None:
        """Close the context with its sockets."""
        self._context.destroy(linger=0)


class Pipe:
    """multiprocessing's Connection over a Unix socket, as Pipe() makes it."""

    def __init__(self, left: bool, directory: Path) -> None:
        self._left, self._path = left, str(directory / "pipe")
        self._listener = Listener(self._path, "AF_UNIX") if left else None
        self._buffers = {size: bytearray(size) for size in SIZES}

    def connect(self) -> None:
        """Accept or connect."""
        self._pipe = self._listener.accept() if self._listener is not None else Client(self._path)
        self.send, self.wait, self.drain = self._pipe.send_bytes, self._pipe.recv_bytes, self._pipe.recv_bytes

    def flood(self, payload: bytes) -> bool:
        """Blocks when the socket is full."""
        self.send(payload)
        return True

    def settle(self, waiting: bool) -> None:
        """Nothing to choose."""

    def poll(self) -> Any:
        """It has no cheaper way to poll."""
        return self._pipe.recv_bytes() if self._pipe.poll(0) else None

    def receive_of(self, size: int) -> Callable[[], Any]:
        """Receive into an existing buffer."""
        pipe, buffer = self._pipe, self._buffers[size]

        def poll() -> Any:
            if not pipe.poll(0):
                return None
            pipe.recv_bytes_into(buffer)
            return buffer

        return poll

    def touch(self, message: Any) -> int:
        """First and last byte."""
        ends: int = message[0] + message[-1]
        return ends

    def fill(self, size: int) -> None:
        """Send from an existing buffer."""
        buffer = self._buffers[size]
        buffer[0], buffer[-1] = 1, 2
        self._pipe.send_bytes(buffer)

    def close(self) -> None:
        """Close both ends."""
        self._pipe.close()
        if self._listener is not None:
            self._listener.close()


LINKS: dict[str, Callable[[bool, Path], Any]] = {
    "brim": Brim,
    "iceoryx2": Iceoryx2,
    "zenoh": Zenoh,
    "pyzmq": PyZmq,
    "pipe": Pipe,
}


def free_ports(count: int) -> list[int]:
    """Free TCP ports of loopback."""
    import socket

    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [it.getsockname()[1] for it in sockets]
    for it in sockets:
        it.close()
    return ports


def pin(core: int) -> None:
    """Bind this process, with all its threads, to one core."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {core})
