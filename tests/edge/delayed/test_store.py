"""The store of delayed messages: bounded batches in the order of due times."""

from pathlib import Path

from edge.delayed.store import DelayedMessage, DelayedStore

PLACE, CLOCK = (1, 0), (0, 1)


def test_a_batch_of_due_messages_is_bounded_by_bytes_and_by_number(tmp_path: Path) -> None:
    store = DelayedStore(tmp_path / "delayed.sqlite", synced=False)
    messages = [DelayedMessage(due, "t", 0, b"", bytes(1000)) for due in (5, 3, 1, 4, 2, 9)]
    store.apply(messages, (), (), PLACE, CLOCK)
    assert [message.due_ns for message in store.due(5, 10, 1 << 20)] == [1, 2, 3, 4, 5]
    assert [message.due_ns for message in store.due(5, 2, 1 << 20)] == [1, 2]
    assert [message.due_ns for message in store.due(5, 10, 2500)] == [1, 2, 3]
    assert [message.due_ns for message in store.due(5, 10, 1)] == [1]
    store.close()
