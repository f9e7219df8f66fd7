"""The newest log lines of a process: bounds, and readers that continue."""

from edge.recent_lines import EXCEPTION_MAX, LINES_MAX, MESSAGE_MAX, TEXT_MAX, RecentLines


def test_a_reader_continues_after_its_last_line_and_learns_how_many_are_gone() -> None:
    recent = RecentLines()
    recent.add({"message": "first"})
    lines, last, skipped = recent.since(0)
    assert ([line["message"] for line in lines], skipped) == (["first"], 0)
    assert recent.since(last) == ([], last, 0)
    for number in range(LINES_MAX + 5):
        recent.add({"message": str(number)})
    lines, end, skipped = recent.since(last)
    assert (len(lines), lines[0]["message"], skipped) == (LINES_MAX, "5", 5)
    assert [line["number"] for line in lines] == list(range(end - LINES_MAX + 1, end + 1))


def test_a_reader_of_a_former_process_gets_all_lines() -> None:
    former, recent = RecentLines(), RecentLines()
    former.add({"message": "before"})
    recent.add({"message": "after"})
    for number in (0, former.since(0)[1] - 1_000_000, recent.since(0)[1] + 1_000_000):
        lines, _, skipped = recent.since(number)
        assert ([line["message"] for line in lines], skipped) == (["after"], 0)


def test_long_lines_are_cut_and_bounded_together() -> None:
    recent = RecentLines()
    for _ in range(100):
        recent.add({"message": "m" * 50_000, "exception": "e" * 50_000 + "end", "fields": {"a": "m"}})
    lines, _, _ = recent.since(0)
    assert len(lines) == TEXT_MAX // (MESSAGE_MAX + 1 + EXCEPTION_MAX)
    assert (len(lines[0]["message"]), lines[0]["exception"][-3:]) == (MESSAGE_MAX + 1, "end")
    assert "fields" not in lines[0]
