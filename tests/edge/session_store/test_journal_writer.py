"""Size of notes: what CONNECT is refused for, because the journal cannot take it; requested snapshots."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from edge.auth.interfaces import ClientInfo
from edge.session_store.journal_records import SessionOpened, encode_record
from edge.session_store.journal_writer import RECORD_HEAD_BYTES, JournalTarget, _longest_record_bytes
from ringbuf import Ring
from tests.support.directories import memory_directory
from tests.support.mqtt_bench import Bench
from tests.support.waiting import wait_until

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ["\U0010ffff" * 70_000]
)
NAMES = TEXTS | st.none()


@given(
    TEXTS, NAMES, TEXTS, NAMES, st.sampled_from(["tcp", "wss", "unix"]), st.binary(max_size=300) | st.none()
)
def test_no_note_of_a_session_is_longer_than_its_upper_limit(
    client_id: str,
    username: str | None,
    address: str,
    certificate: str | None,
    transport: str,
    der: bytes | None,
) -> None:
    facts = ClientInfo(
        client_id,
        username,
        address,
        (1 << 31) - 1,
        certificate=certificate,
        transport=transport,
        certificate_der=der,
    )
    record = SessionOpened((1 << 32) - 1, replace(facts, identity=username, verified=True), (1 << 32) - 1)
    assert len(encode_record(record)) + RECORD_HEAD_BYTES <= _longest_record_bytes(facts)


def test_a_snapshot_that_is_requested_while_another_is_written_follows_it() -> None:
    """A backup waits for it: the first one may lack the last changes."""
    finished: list[Callable[[], object]] = []
    with (
        memory_directory() as directory,
        Bench(directory=directory) as bench,
        Ring.create(directory / "sessions", capacity_bytes=1 << 20, epoch=1) as ring,
    ):
        bench.broker.call = finished.append
        bench.broker.keep(JournalTarget(ring, ring.writer(), ((directory / "sessions.state", False),)))
        journal = bench.broker.journal
        rounds = [journal.request_snapshot(), journal.request_snapshot()]
        assert journal.saved_round < rounds[0] < rounds[1]
        for saved_round in rounds:
            wait_until(lambda: finished)
            finished.pop()()
            assert journal.saved_round == saved_round
        assert not journal.writing
        bench.broker.stop()
