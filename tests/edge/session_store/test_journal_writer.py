"""Size of notes: what CONNECT is refused for, because the journal cannot take it."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from edge.auth.interfaces import ClientInfo
from edge.session_store.journal_records import SessionOpened, encode_record
from edge.session_store.journal_writer import RECORD_HEAD_BYTES, _longest_record_bytes

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
