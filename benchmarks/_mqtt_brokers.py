"""Brokers of the MQTT benchmark, each a process of its own on a loopback port, and their costs.

Brim is `brim run` with an ordinary configuration file: sessions, access rules, limits and counters are on.
Some limits are raised for the large tests. aedes is installed by npm, once, into the user's cache directory.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from edge.config.schema import Config

ROOT = Path(__file__).resolve().parent.parent
AEDES = "1.2.0"
START_S = 20.0
STOP_S = 15.0
OPEN_FILES = 65_536

AMQTT = """
listeners:
  default:
    type: tcp
    bind: 127.0.0.1:{port}
    max_connections: 50000
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
"""

AEDES_SERVER = """
import { Aedes } from 'aedes'
import { createServer } from 'node:net'
const broker = await Aedes.createBroker()
createServer(broker.handle).listen(Number(process.argv[2]), '127.0.0.1', 4096)
"""


@dataclass(frozen=True)
class Broker:
    """A running broker.

    `slow`: it answers before it has worked, so its processor time shows when it is done.
    """

    name: str
    port: int
    pid: int
    slow: bool = False

    def cpu_s(self) -> float:
        """Processor time of all its threads so far."""
        total = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except (OSError, IndexError):  # a thread that has ended meanwhile
                continue
        return total / 1e9

    def memory_bytes(self) -> int:
        """Resident memory without the pages of shared memory, which are the ring."""
        status = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines()
            if ":" in line
        )
        return int(status["RssAnon"].split()[0]) * 1024

    def settle(self) -> float:
        """Wait until it is idle. Returns the moment (time.monotonic()) when that began."""
        before, since = self.cpu_s(), time.monotonic()
        while True:
            time.sleep(0.05)
            now = self.cpu_s()
            if now - before < 0.005:
                return since
            before, since = now, time.monotonic()


def free_port() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def process(
    name: str, command: list[str], port: int, directory: Path, *, slow: bool = False
) -> Iterator[Broker]:
    """Run a broker until the end of the block.

    Its output goes to a file, which is shown if it does not start.
    """
    log = directory / f"{name}.log"
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT)
    try:
        deadline = time.monotonic() + START_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if child.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{name} does not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield Broker(name, port, child.pid, slow)
    finally:
        child.terminate()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextmanager
def brim(directory: Path, *, busy: bool = False) -> Iterator[Broker]:
    """`brim run`; `busy`: with a Python thread that computes 5 ms of every 10."""
    port, place = free_port(), directory / ("brim-busy" if busy else "brim")
    place.mkdir(exist_ok=True)
    rules = place / "acl"
    rules.write_text("topic readwrite #\npattern readwrite #\n")
    lines = [
        f"runtime_dir = {json.dumps(str(place / 'run'))}",
        f"state_dir = {json.dumps(str(place / 'state'))}",
        *(("[auth]", f"acl_file = {json.dumps(str(rules))}") if "auth" in Config.__struct_fields__ else ()),
        "[[listener]]",
        f"port = {port}",
        "[limits]",
        "connections_max = 20_000",
        "topics_max = 4_000_000",
        "subscriptions_max = 100_000",
        "retained_max = 2_000_000",
        'retained_max_bytes = "1 GiB"',
        "queued_records_max = 2_000_000",
    ]
    (place / "brim.toml").write_text("\n".join(lines) + "\n")
    verb = ["run", "--config", str(place / "brim.toml"), "--log-level", "warning", "--quiet"]
    start = ["benchmarks._mqtt_busy"] if busy else ["edge"]
    with process(place.name, [sys.executable, "-m", *start, *verb], port, directory) as broker:
        yield broker


@contextmanager
def mosquitto(directory: Path) -> Iterator[Broker]:
    """Debian's Mosquitto 2, without limits."""
    binary = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if binary is None:
        raise FileNotFoundError("apt-get install mosquitto")
    port, config = free_port(), directory / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\nmax_queued_messages 0\n"
        "log_dest none\n"
    )
    with process("mosquitto", [binary, "-c", str(config)], port, directory) as broker:
        yield broker


@contextmanager
def nats(directory: Path) -> Iterator[Broker]:
    """Debian's nats-server, whose MQTT needs JetStream."""
    binary = shutil.which("nats-server")
    if binary is None:
        raise FileNotFoundError("apt-get install nats-server")
    port, config = free_port(), directory / "nats.conf"
    config.write_text(
        f"server_name: bench\nhost: 127.0.0.1\nport: {free_port()}\n"
        f"mqtt {{ host: 127.0.0.1, port: {port} }}\n"
        f"jetstream {{ store_dir: {json.dumps(str(directory / 'nats'))} }}\nmax_connections: 65536\n"
    )
    with process("nats", [binary, "-c", str(config)], port, directory) as broker:
        yield broker


@contextmanager
def amqtt(directory: Path) -> Iterator[Broker]:
    """amqtt, of this environment."""
    port, config = free_port(), directory / "amqtt.yaml"
    config.write_text(AMQTT.format(port=port))
    binary = str(Path(sys.executable).with_name("amqtt"))
    with process("amqtt", [binary, "-c", str(config)], port, directory, slow=True) as broker:
        yield broker


@contextmanager
def aedes(directory: Path) -> Iterator[Broker]:
    """Node, running aedes."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise FileNotFoundError("apt-get install nodejs npm")
    port, home = free_port(), installed(npm)
    (home / "server.mjs").write_text(AEDES_SERVER)
    with process("aedes", [node, str(home / "server.mjs"), str(port)], port, directory) as broker:
        yield broker


def installed(npm: str) -> Path:
    """Directory with this version of aedes; npm installs it if it is absent."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "brim-bench" / f"aedes-{AEDES}"
    if not (home / "node_modules" / "aedes" / "package.json").is_file():
        print(f"   installing aedes {AEDES} into {home} ...", flush=True)
        home.mkdir(parents=True, exist_ok=True)
        (home / "package.json").write_text('{"private": true}\n')
        command = [npm, "install", "--no-audit", "--no-fund", "--save-exact", f"aedes@{AEDES}"]
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
        if done.returncode:
            raise FileNotFoundError(f"npm could not install aedes {AEDES} (status {done.returncode})")
    return home


PEERS: dict[str, Callable[[Path], object]] = {
    "mosquitto": mosquitto,
    "nats": nats,
    "amqtt": amqtt,
    "aedes": aedes,
}


def started(names: list[str], directory: Path, stack: ExitStack) -> list[Broker]:
    """Brim and the available peers; an unavailable one is reported."""
    brokers = [stack.enter_context(brim(directory))]
    for name in names:
        try:
            brokers.append(stack.enter_context(PEERS[name](directory)))  # type: ignore[arg-type]
        except FileNotFoundError as missing:
            print("=" * 78 + f"\n{name} is NOT MEASURED: {missing}\n" + "=" * 78, flush=True)
    return brokers
