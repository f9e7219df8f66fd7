"""A real Kafka for tests: one broker in KRaft mode, from jars of Maven Central.

    python -m tests.support.kafka_broker      fetch them; `./dev kafka` does

They are asked of Maven by name and version, and kept only if each has the SHA-256 of kafka.sha256, and there
is no other: $BRIM_KAFKA, or ~/.cache/brim/kafka-VERSION.  To raise VERSION: fetch with it and an empty list,
look at what came, and write the list anew with sha256sum.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.ports import free_port

VERSION = "4.1.1"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
HASHES = Path(__file__).with_name("kafka.sha256")
START_S = 90.0
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"  # any 16 bytes in base64

POM = f"""<project><modelVersion>4.0.0</modelVersion>
<groupId>brim</groupId><artifactId>kafka-for-tests</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
<version>{VERSION}</version></dependency></dependencies></project>
"""

PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
num.partitions=4
log.dirs={logs}
"""


def jars() -> Path:
    """Where the jars are, or will be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("BRIM_KAFKA") or cache / "brim" / f"kafka-{VERSION}")


def why_not() -> str:
    """Why there is no broker here; "" if there is one."""
    if shutil.which("java") is None:
        return "A REAL KAFKA BROKER IS NOT TESTED: it needs Java 17 or newer"
    return "" if jars().is_dir() else "A REAL KAFKA BROKER IS NOT TESTED: fetch it with ./dev kafka"


def fetch() -> Path:
    """The jars, checked, fetched if they are not there.  Raises SystemExit with what is in the way."""
    target = jars()
    if target.is_dir():
        return target
    maven = shutil.which("mvn")
    if maven is None:
        sys.exit("Kafka's jars come by Maven, and there is none: apt-get install maven")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        Path(work, "pom.xml").write_text(POM)
        command = [maven, "-q", "-B", PLUGIN, "-DincludeScope=runtime", "-DoutputDirectory=lib"]
        if subprocess.run(command, cwd=work, check=False).returncode:
            sys.exit("Maven could not fetch Kafka's jars")
        found = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in Path(work, "lib").iterdir()
        }
        wanted = dict(line.split()[::-1] for line in HASHES.read_text().splitlines())
        if odd := sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name)):
            sys.exit(f"these jars are not those of {HASHES.name}, and are not kept: {', '.join(odd)}")
        with suppress(OSError):  # somebody else was quicker
            Path(work, "lib").rename(target)
    return target


class KafkaBroker:
    """One broker on loopback, which keeps what it has when it is killed."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.servers = f"127.0.0.1:{self.port}"
        self._properties = directory / "kafka.properties"
        text = PROPERTIES.format(port=self.port, controller=free_port(), logs=directory / "logs")
        self._properties.write_text(text)
        self._output = directory / "kafka.out"
        self._process: subprocess.Popen[bytes] | None = None
        self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c").wait(START_S)

    def start(self) -> None:
        """Returns when it listens."""
        self._process = self._java("kafka.Kafka")
        deadline = time.monotonic() + START_S
        while not self._listens():
            assert self._process.poll() is None, self._output.read_text()
            assert time.monotonic() < deadline, "the broker does not listen"
            time.sleep(0.05)

    def kill(self) -> None:
        """At once.  May be called twice."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars()}/*", *arguments]
        with self._output.open("ab") as output:
            return subprocess.Popen([*command, str(self._properties)], stdout=output, stderr=output)

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
            return True
        return False


@contextmanager
def kafka_broker(directory: Path) -> Iterator[KafkaBroker]:
    """A broker that runs; gone afterwards."""
    broker = KafkaBroker(directory)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


if __name__ == "__main__":
    print(fetch())
