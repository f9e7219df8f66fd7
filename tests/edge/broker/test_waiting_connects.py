"""CONNECT packets of clients that have not logged in: bounded memory, which ends with the connection."""

from collections.abc import Callable
from concurrent.futures import Future

import pytest

from edge.auth.interfaces import Answer, ClientInfo
from edge.broker.waiting_connects import USUAL_MAX_BYTES, WAITING_MAX_BYTES, WaitingConnects
from edge.engine.engine import EngineLimits
from edge.mqtt import Auth, ConnAck, Connect, Packet, Properties, ReasonCode, Version
from tests.edge.broker.test_enhanced_auth import Sphinx
from tests.support.mqtt_bench import Bench, Wire
from tests.support.rules import Anybody

V5 = Version.V5
LONG = "x" * 60_000
ONE_ADDRESS_MAX = WAITING_MAX_BYTES * 3 // 4
OPEN = EngineLimits(connections_max=1_000)


class Slow(Anybody):
    """Answers later."""

    def __init__(self) -> None:
        self.answers: list[Future[bool]] = []

    def authenticate(self, client: ClientInfo, password: bytes | None) -> Answer:
        self.answers.append(Future())
        return self.answers[-1]


def by_password(name: str) -> Connect:
    return Connect(name, version=V5, username=LONG, password=b"x")


def by_riddle(name: str) -> Connect:
    return Connect(name + LONG, version=V5, properties=Properties(authentication_method="RIDDLE"))


def waits(bench: Bench, connect: Connect) -> tuple[bool, Wire]:
    """True if the client has to wait for its authentication; False if it is refused as busy."""
    wire = bench.wire(V5)
    wire.send(connect)
    answers: list[Packet] = wire.received()
    if wire.is_open:
        assert all(isinstance(answer, Auth) for answer in answers), answers
        return True, wire
    (refusal,) = answers
    assert isinstance(refusal, ConnAck)
    assert refusal.reason_code == ReasonCode.SERVER_BUSY
    return False, wire


@pytest.mark.parametrize("connect", [by_password, by_riddle])
def test_long_packets_of_one_address_wait_up_to_three_quarters(connect: Callable[[str], Connect]) -> None:
    with Bench(authenticator=Slow(), enhanced=Sphinx(), engine=OPEN) as bench:
        waiting: list[Wire] = []
        while (answer := waits(bench, connect(f"c{len(waiting)}")))[0]:
            waiting.append(answer[1])
        assert len(waiting) == ONE_ADDRESS_MAX // 60_050
        usual, _ = waits(bench, Connect("usual", version=V5, username="ann", password=b"secret"))
        assert usual
        waiting[0].drop()
        assert waits(bench, connect("again"))[0]
        assert not waits(bench, connect("one more"))[0]


def test_an_answer_frees_the_memory_and_an_end_cancels_the_authentication() -> None:
    slow = Slow()
    with Bench(authenticator=slow, engine=OPEN) as bench:
        clients = [waits(bench, by_password(f"c{n}"))[1] for n in range(ONE_ADDRESS_MAX // 60_050)]
        assert not waits(bench, by_password("late"))[0]
        assert slow.answers.pop().cancelled()  # refused: no hash is computed for it
        slow.answers[0].set_result(True)
        bench.settle()
        assert isinstance(clients[0].answer(), ConnAck)
        assert waits(bench, by_password("next"))[0]
        clients[1].drop()
        assert slow.answers[1].cancelled()


def test_other_addresses_keep_a_share() -> None:
    waiting = WaitingConnects()
    for connection in range(1_000):
        waiting.take(connection, "192.0.2.7:1", 100_000)
    assert waiting.bytes <= ONE_ADDRESS_MAX
    assert waiting.take(2_000, "192.0.2.8:1", 1_000_000)
    assert not waiting.take(2_001, "192.0.2.7:1", USUAL_MAX_BYTES + 1)
    assert waiting.take(2_002, "192.0.2.7:1", USUAL_MAX_BYTES)
    for connection in range(3_000):
        waiting.give(connection)
    assert waiting.bytes == 0
