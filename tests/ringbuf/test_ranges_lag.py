"""The slot of a reader that takes ranges, as others see it."""

import pytest

from ringbuf import Ring


@pytest.mark.parametrize("blocks_writer", [False, True])
def test_ranges_show_how_far_a_reader_is_and_release_nothing_that_gates(
    ring: Ring, blocks_writer: bool
) -> None:
    reader, writer = ring.reader(name="bridge", start="oldest", blocks_writer=blocks_writer), ring.writer()
    for number in range(3):
        writer.publish(f"{number}", key="t")
    assert len(reader.ranges(1 << 20)) == 1
    (slot,) = ring.slots()
    assert slot.offset == (0 if blocks_writer else 3)
    assert slot.cursor == (0 if blocks_writer else writer.end_position)
    if blocks_writer:
        reader.release(writer.end_position)
        (slot,) = ring.slots()
        assert slot.cursor == writer.end_position
