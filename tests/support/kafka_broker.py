"""A real Kafka for tests: one broker in KRaft mode, from jars of Maven Central.

python -m tests.support.kafka_broker      fetch them, and Spark's source; `./dev kafka` does
"""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.maven import Jars
from tests.support.ports import free_port

JARS = Jars(
    name="kafka-4.1.1",
    variable="BRIM_KAFKA",
    artifacts=("org.apache.kafka:kafka_2.13:4.1.1",),
    hashes=Path(__file__).with_name("kafka.sha256"),
)
START_S = 90.0
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"  # any 16 bytes in base64

PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=DIRECT://127.0.0.1:{port},LINE://127.0.0.1:{behind},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=DIRECT://127.0.0.1:{port},LINE://127.0.0.1:{line}
inter.broker.listener.name=DIRECT
controller.listener.names=CONTROLLER
listener.security.protocol.map=DIRECT:PLAINTEXT,LINE:PLAINTEXT,CONTROLLER:PLAINTEXT
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
num.partitions=4
log.dirs={logs}
"""


def why_not() -> str:
    """Why there is no broker here; "" if there is one."""
    if shutil.which("java") is None:
        return "A REAL KAFKA BROKER IS NOT TESTED: it needs Java 17 or newer"
    return "" if JARS.directory.is_dir() else "A REAL KAFKA BROKER IS NOT TESTED: fetch it with ./dev kafka"


class KafkaBroker:
    """One broker on loopback, which keeps what it has when it is killed.

    `by_line`: a port where it listens as well, and the other end of the line that leads there, which is what
    it tells clients that come by it.
    """

    def __init__(self, directory: Path, by_line: tuple[int, int] | None = None) -> None:
        self.port = free_port()
        self.servers = f"127.0.0.1:{self.port}"
        self._properties = directory / "kafka.properties"
        behind, line = by_line or (free_port(),) * 2
        ports = {"port": self.port, "behind": behind, "line": line, "controller": free_port()}
        self._properties.write_text(PROPERTIES.format(**ports, logs=directory / "logs"))
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
        command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS.directory}/*", *arguments]
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
    from tests.support.kafka_connector import CONNECTOR

    print(JARS.fetch(), CONNECTOR.fetch(), sep="\n")
