"""Is the MQTT hot path in the right league?  Brim beside Mosquitto, same generator, alternating, a minute.

    python benchmarks/mqtt_quick.py [--rounds 3] [--only ingest_q0]

Prints a table (messages a second, medians of the rounds) and, as its last line, one JSON object of ratios.
Needs the Debian package mosquitto.  The generator sends prepared frames and counts bytes, so that one core of
Python is not the limit; it counts every delivery and says so if one is missing.

Not a load test: one machine, loopback, both sides on the same cores.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from edge.mqtt import Connect, Publish, Subscribe, Subscription, encode  # noqa: E402

PAYLOAD = bytes(64)
TOPIC = "bench/devices/0001/t"
CHUNK = 500  # frames in one send
CLK = os.sysconf("SC_CLK_TCK")


class Client:
    """A socket that has connected; blocking."""

    def __init__(self, port: int, client_id: str, subscribe: str | None = None, qos: int = 0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(encode(Connect(client_id, keep_alive_s=0)))
        self.take(4)
        if subscribe:
            self.socket.sendall(encode(Subscribe(1, (Subscription(subscribe, qos),))))
            self.take(5)

    def take(self, count: int) -> None:
        """Wait for `count` bytes."""
        while count:
            count -= len(self.socket.recv(count))

    def ping(self) -> None:
        """Wait until everything sent so far has been handled."""
        self.socket.sendall(b"\xc0\x00")
        self.take(2)


def frames(count: int, qos: int = 0, topic: str = TOPIC) -> bytes:
    """`count` PUBLISH packets."""
    return b"".join(encode(Publish(topic, PAYLOAD, qos, packet_id=i + 1 if qos else 0)) for i in range(count))


def ingest_q0(port: int) -> float:
    """One publisher, nobody subscribed."""
    client, batch, rounds = Client(port, "p"), frames(CHUNK), 4000
    client.socket.sendall(batch)
    client.ping()
    seconds, sent = 0.0, 0
    while seconds < 1.0:
        begin = time.perf_counter()
        for _ in range(rounds // 10):
            client.socket.sendall(batch)
        client.ping()
        seconds += time.perf_counter() - begin
        sent += CHUNK * (rounds // 10)
    client.socket.close()
    return sent / seconds


def delivery(port: int, subscribers: int, outstanding: int, chunk: int = CHUNK) -> float:
    """One publisher, `subscribers` who get everything; deliveries a second.  Nothing may be dropped."""
    subs = [Client(port, f"s{i}", TOPIC) for i in range(subscribers)]
    pub, batch = Client(port, "p"), frames(chunk)
    frame, buffer = len(batch) // chunk, bytearray(1 << 20)
    selector = selectors.DefaultSelector()
    got = [0] * subscribers
    for i, sub in enumerate(subs):
        sub.socket.setblocking(False)
        selector.register(sub.socket, selectors.EVENT_READ, i)
    begin, sent, stop, progress = time.perf_counter(), 0, False, time.perf_counter()
    while not stop or min(got) < sent * frame:
        now = time.perf_counter()
        stop = stop or now - begin > 1.0
        if not stop and sent - min(got) // frame + chunk <= outstanding:
            pub.socket.sendall(batch)
            sent += chunk
        for key, _ in selector.select(0 if not stop else 0.5):
            got[key.data] += key.fileobj.recv_into(buffer)  # type: ignore[union-attr]
            progress = now
        if now - progress > 3:
            raise SystemExit(f"deliveries are missing: {min(got) // frame} of {sent}")
    seconds = time.perf_counter() - begin
    for client in (*subs, pub):
        client.socket.close()
    return sent * subscribers / seconds


def ingest_q1(port: int, clients: int, window: int) -> float:
    """Publishers with `window` messages in flight each; acknowledged messages a second."""
    batch = frames(window, 1)
    pubs = [Client(port, f"p{i}") for i in range(clients)]
    selector = selectors.DefaultSelector()
    for pub in pubs:
        pub.socket.setblocking(False)
        selector.register(pub.socket, selectors.EVENT_READ)
        pub.socket.sendall(batch)
    waiting = dict.fromkeys((pub.socket for pub in pubs), 4 * window)
    begin, acked = time.perf_counter(), 0
    while time.perf_counter() - begin < 1.0:
        for key, _ in selector.select(1):
            sock: socket.socket = key.fileobj  # type: ignore[assignment]
            waiting[sock] -= len(sock.recv(4 * window))
            if not waiting[sock]:
                waiting[sock] = 4 * window
                acked += window
                sock.send(batch)
    for pub in pubs:
        pub.socket.close()
    return acked / (time.perf_counter() - begin)


TESTS: dict[str, Callable[[int], float]] = {
    "ingest_q0_1": ingest_q0,
    "deliver_1_1": lambda port: delivery(port, 1, 20_000),
    "deliver_1_1_20": lambda port: delivery(port, 1, 20, 20),
    "fanout_10": lambda port: delivery(port, 10, 5_000),
    "fanout_100": lambda port: delivery(port, 100, 2_000),
    "ingest_q1_window100": lambda port: ingest_q1(port, 1, 100),
    "ingest_q1_100x1": lambda port: ingest_q1(port, 100, 1),
}


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLK


def wait_for(port: int) -> None:
    """Until somebody listens."""
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"nobody listens on {port}")


def free_port() -> int:
    """One that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def broker(command: list[str], port: int) -> Iterator[SimpleNamespace]:
    """A broker process."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield SimpleNamespace(port=port, pid=process.pid)
    finally:
        process.terminate()
        process.wait(10)


def serve_brim(port: int, directory: str) -> None:
    """Brim's hot path and broker, with one ring of 64 MiB, until SIGTERM."""
    import signal

    from edge.broker import Broker
    from edge.engine import engine_of
    from edge.listener import Listener
    from ringbuf import Ring

    with Ring.create(Path(directory, "bench-0"), epoch=1) as ring:
        partition = SimpleNamespace(name="bench-0", writer=ring.writer(), durability="process")
        engine = engine_of()
        listener = Listener(engine, Broker(engine, lambda topic: partition))
        listener.listen("127.0.0.1", port)
        listener.start()
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
        listener.stop()


def measure(names: list[str], rounds: int) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """By test and broker -> (rate, broker's CPU seconds a message), by round."""
    ports = {"brim": free_port(), "mosquitto": free_port()}
    results: dict[str, dict[str, list[tuple[float, float]]]] = {
        name: {who: [] for who in ports} for name in names
    }
    mosquitto = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        conf = Path(directory, "mosquitto.conf")
        conf.write_text(
            f"listener {ports['mosquitto']} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n"
            "max_queued_messages 0\nlog_dest none\n"
        )
        brim = [sys.executable, __file__, "--serve", str(ports["brim"]), directory]
        with (
            broker(brim, ports["brim"]) as ours,
            broker([mosquitto, "-c", str(conf)], ports["mosquitto"]) as theirs,
        ):
            for name in names * rounds:
                for who, there in (("brim", ours), ("mosquitto", theirs)):
                    before, begin = cpu_s(there.pid), time.perf_counter()
                    rate = TESTS[name](there.port)
                    messages = rate * (time.perf_counter() - begin)
                    results[name][who].append((rate, (cpu_s(there.pid) - before) / messages))
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="tests whose names begin so")
    parser.add_argument("--serve", nargs=2, metavar=("PORT", "DIR"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve_brim(int(options.serve[0]), options.serve[1])
        return
    names = [name for name in TESTS if name.startswith(options.only)]
    results = measure(names, options.rounds)
    ratios = {}
    print(f"{'':22}{'brim k/s':>10}{'us CPU':>8}{'mosquitto k/s':>15}{'us CPU':>8}{'ratio':>8}")
    for name in names:
        (ours, our_cpu), (theirs, their_cpu) = (
            tuple(statistics.median(column) for column in zip(*results[name][who], strict=True))
            for who in ("brim", "mosquitto")
        )
        ratios[name] = round(ours / theirs, 2)
        print(
            f"{name:22}{ours / 1e3:10,.0f}{our_cpu * 1e6:8.3f}{theirs / 1e3:15,.0f}{their_cpu * 1e6:8.3f}"
            f"{ratios[name]:8.1f}"
        )
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
