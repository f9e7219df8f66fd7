"""Brokers of the MQTT benchmark: their configurations and commands.

Brim is `brim run` with an ordinary configuration file: sessions, access rules, limits and counters are on.
Some limits are raised for the large tests. aedes is installed by npm, once, into the user's cache directory.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks._mqtt_process import Broker, Ports, Program, free_port, process
from edge.config.schema import Config

AEDES = "1.2.0"

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


def certificate(directory: Path) -> tuple[Path, Path]:
    """Files of a certificate (ECDSA, P-256) and of its key. Raises FileNotFoundError without openssl."""
    files = directory / "certificate.pem", directory / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost"
    places = ["-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run([*command.split(), *places], check=True, capture_output=True)
    return files


def brim_listeners(directory: Path, ports: Ports) -> list[str]:
    """Listeners in the configuration of Brim."""
    lines = ["[[listener]]", f"port = {ports.mqtt}"]
    if ports.ws:
        lines += ["[[listener]]", f"port = {ports.ws}", 'transport = "websocket"']
    if ports.tls:
        shown, key = (json.dumps(str(it)) for it in certificate(directory))
        lines += ["[[listener]]", f"port = {ports.tls}"]
        lines += ["[listener.tls]", f"certificate_file = {shown}", f"key_file = {key}"]
    return lines


@contextmanager
def brim(directory: Path, ports: Ports, *, busy: bool = False) -> Iterator[Broker]:
    """`brim run`; `busy`: with a Python thread that computes 5 ms of every 10."""
    rules = directory / "acl"
    rules.write_text("topic readwrite #\npattern readwrite #\n")
    lines = [
        f"runtime_dir = {json.dumps(str(directory / 'run'))}",
        f"state_dir = {json.dumps(str(directory / 'state'))}",
        *(("[auth]", f"acl_file = {json.dumps(str(rules))}") if "auth" in Config.__struct_fields__ else ()),
        *brim_listeners(directory, ports),
        "[limits]",
        "connections_max = 20_000",
        "topics_max = 4_000_000",
        "subscriptions_max = 100_000",
        'subscriptions_max_bytes = "256 MiB"',
        "retained_max = 2_000_000",
        'retained_max_bytes = "1 GiB"',
        "queued_records_max = 2_000_000",
    ]
    config = directory / "brim.toml"
    config.write_text("\n".join(lines) + "\n")
    start = ["benchmarks._mqtt_busy"] if busy else ["edge"]
    verb = ["run", "--config", str(config), "--log-level", "warning", "--quiet"]
    with process("brim", [sys.executable, "-m", *start, *verb], ports, directory) as broker:
        yield broker


@contextmanager
def busy_brim(directory: Path, ports: Ports) -> Iterator[Broker]:
    """`brim run`, half of whose time a thread computes."""
    with brim(directory, ports, busy=True) as broker:
        yield broker


def mosquitto_config(directory: Path, ports: Ports) -> Path:
    """Configuration of a Mosquitto 2 without limits."""
    lines = [
        *("allow_anonymous true", "set_tcp_nodelay true", "max_queued_messages 0", "log_dest none"),
        f"listener {ports.mqtt} 127.0.0.1",
    ]
    if ports.ws:
        lines += [f"listener {ports.ws} 127.0.0.1", "protocol websockets"]
    if ports.tls:
        shown, key = certificate(directory)
        lines += [f"listener {ports.tls} 127.0.0.1", f"certfile {shown}", f"keyfile {key}"]
    if os.geteuid() == 0:
        lines += ["user root"]  # so that it can read the key
    config = directory / "mosquitto.conf"
    config.write_text("\n".join(lines) + "\n")
    return config


@contextmanager
def mosquitto(directory: Path, ports: Ports) -> Iterator[Broker]:
    """Debian's Mosquitto 2, without limits."""
    binary = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if binary is None:
        raise FileNotFoundError("apt-get install mosquitto")
    command = [binary, "-c", str(mosquitto_config(directory, ports))]
    with process("mosquitto", command, ports, directory) as broker:
        yield broker


@contextmanager
def nats(directory: Path, ports: Ports) -> Iterator[Broker]:
    """Debian's nats-server, whose MQTT needs JetStream."""
    binary = shutil.which("nats-server")
    if binary is None:
        raise FileNotFoundError("apt-get install nats-server")
    config = directory / "nats.conf"
    config.write_text(
        f"server_name: bench\nhost: 127.0.0.1\nport: {free_port()}\n"
        f"mqtt {{ host: 127.0.0.1, port: {ports.mqtt} }}\n"
        f"jetstream {{ store_dir: {json.dumps(str(directory / 'nats'))} }}\nmax_connections: 65536\n"
    )
    with process("nats", [binary, "-c", str(config)], ports, directory) as broker:
        yield broker


@contextmanager
def amqtt(directory: Path, ports: Ports) -> Iterator[Broker]:
    """amqtt, of this environment."""
    config = directory / "amqtt.yaml"
    config.write_text(AMQTT.format(port=ports.mqtt))
    binary = str(Path(sys.executable).with_name("amqtt"))
    with process("amqtt", [binary, "-c", str(config)], ports, directory, slow=True) as broker:
        yield broker


@contextmanager
def aedes(directory: Path, ports: Ports) -> Iterator[Broker]:
    """Node, running aedes."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise FileNotFoundError("apt-get install nodejs npm")
    home = installed(npm)
    (home / "server.mjs").write_text(AEDES_SERVER)
    with process("aedes", [node, str(home / "server.mjs"), str(ports.mqtt)], ports, directory) as broker:
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


PLACEHOLDERS = ("port", "tls_port", "ws_port", "dir", "certificate", "key", "mosquitto_conf")
ALL_LISTENERS = frozenset({"tls", "ws"})
BRIM = Program(brim, ALL_LISTENERS)
BUSY_BRIM = Program(busy_brim)
PEERS = {
    "mosquitto": Program(mosquitto, ALL_LISTENERS),
    "nats": Program(nats),
    "amqtt": Program(amqtt),
    "aedes": Program(aedes),
}


def other(name: str, command: str) -> Program:
    """A broker by its command, in which names in braces are replaced.

    Raises ValueError for a name that is not in PLACEHOLDERS.
    """
    names = dict.fromkeys(PLACEHOLDERS, "")
    try:
        command.format(**names)
    except (KeyError, IndexError, ValueError) as wrong:
        raise ValueError(f"--peer {name}: {wrong} is not one of {', '.join(names)}") from wrong

    @contextmanager
    def start(directory: Path, ports: Ports) -> Iterator[Broker]:
        shown, key = certificate(directory) if ports.tls else ("", "")
        values = {
            "port": ports.mqtt,
            "tls_port": ports.tls,
            "ws_port": ports.ws,
            "dir": directory,
            "certificate": shown,
            "key": key,
            "mosquitto_conf": mosquitto_config(directory, ports),
        }
        words = [word.format(**values) for word in shlex.split(command)]
        with process(name, words, ports, directory) as broker:
            yield broker

    has = {it for it in ALL_LISTENERS if f"{{{it}_port}}" in command or "{mosquitto_conf}" in command}
    return Program(start, frozenset(has))


@contextmanager
def one(
    name: str, program: Program, place: Path, listeners: frozenset[str] = frozenset()
) -> Iterator[Broker]:
    """A broker in a directory of its own, which is removed with it."""
    directory = place / name
    directory.mkdir()
    try:
        with program.start(directory, program.ports(listeners)) as broker:
            yield dataclasses.replace(broker, name=name)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def started(programs: dict[str, Program], place: Path, stack: ExitStack) -> list[Broker]:
    """The available brokers, running; an unavailable one is reported."""
    brokers = []
    for name, program in programs.items():
        try:
            brokers.append(stack.enter_context(one(name, program, place)))
        except FileNotFoundError as missing:
            print("=" * 78 + f"\n{name} is NOT MEASURED: {missing}\n" + "=" * 78, flush=True)
    return brokers
