"""Progress of a bridge in another process: each lost range reaches the broker once."""

from collections.abc import Callable

import pytest

from edge.errors import BrokerUnreachable, EdgeError
from edge.local import upstream_reporter
from edge.local.protocol import Done, Drained
from edge.local.upstream_reporter import LOST_MAX, UpstreamReporter
from tests.support.waiting import wait_until


class Broker:
    """Stands for the connection to a broker. `meanwhile` is called while a report is under way; the next look
    finds that the broker has `ended`.
    """

    def __init__(self) -> None:
        self.reports: list[Drained] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self.failure: EdgeError | None = None
        self.ended = False

    def request(self, report: Drained, _: type[Done]) -> Done:
        self.meanwhile()
        if self.failure is not None:
            raise self.failure
        self.reports.append(report)
        return Done()

    def receive(self) -> None:
        ended, self.ended = self.ended, False
        if ended:
            raise BrokerUnreachable("gone")

    def close(self) -> None:
        """Nothing to close."""

    @property
    def lost(self) -> set[int]:
        """All offsets that were reported as lost."""
        return {offset for it in self.reports for first, last in it.lost for offset in range(first, last + 1)}


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(upstream_reporter, "Connection", lambda _: broker)
    return broker


@pytest.fixture
def reporter() -> UpstreamReporter:
    return UpstreamReporter("lake", None)


def reported(reporter: UpstreamReporter) -> None:
    """All reports that are due, without the thread."""
    while reporter._unreported():
        reporter._report()


def test_what_is_lost_while_a_report_is_under_way_is_reported(
    reporter: UpstreamReporter, broker: Broker
) -> None:
    """Also if it does not move the offset, and if the ranges are more than are kept apart."""
    more = iter([[(it * 10, it * 10) for it in range(100, 100 + LOST_MAX)], [(5, 5)], []])
    broker.meanwhile = lambda: reporter.report_progress("t-0", 1, 10, next(more, ()))
    reporter.report_progress("t-0", 1, 10, [(1, 3)])
    for _ in range(4):
        reporter._report()
    broker.meanwhile = lambda: None
    reported(reporter)
    assert {1, 2, 3, 5, *(it * 10 for it in range(100, 100 + LOST_MAX))} <= broker.lost


def test_a_report_that_failed_is_repeated_with_its_losses(reporter: UpstreamReporter, broker: Broker) -> None:
    reporter.report_progress("t-0", 1, 10, [(1, 3)])
    broker.failure = EdgeError("refused")
    broker.meanwhile = lambda: reporter.report_progress("t-0", 1, 20, [(15, 15)])
    with pytest.raises(EdgeError):
        reporter._report()
    broker.failure, broker.meanwhile = None, lambda: None
    reported(reporter)
    assert broker.reports == [Drained("lake", "t-0", 1, 20, ((1, 3), (15, 15)))]


def test_a_broker_that_restarts_gets_the_losses_again(reporter: UpstreamReporter, broker: Broker) -> None:
    reporter.report_progress("t-0", 1, 10, [(1, 3)])
    reported(reporter)
    reporter.report_progress("t-0", 1, 20, [(15, 15)])
    broker.failure = BrokerUnreachable("gone")
    with pytest.raises(BrokerUnreachable):
        reporter._report()
    reporter._drop(forget=True)
    broker.failure = None
    broker.reports.clear()
    reported(reporter)
    assert broker.reports == [Drained("lake", "t-0", 1, 20, ((1, 3), (15, 15)))]


def test_a_broker_that_restarts_gets_the_progress_of_rings_without_news(
    reporter: UpstreamReporter, broker: Broker
) -> None:
    reporter.report_progress("t-0", 1, 10, [(1, 3)])
    reported(reporter)
    reporter.report_progress("t-1", 1, 20, ())
    broker.failure = BrokerUnreachable("gone")
    with pytest.raises(BrokerUnreachable):
        reporter._report()
    reporter._drop(forget=True)
    broker.failure = None
    broker.reports.clear()
    reported(reporter)
    assert broker.reports == [Drained("lake", "t-0", 1, 10, ((1, 3),)), Drained("lake", "t-1", 1, 20, ())]


def test_a_broker_that_restarts_while_there_is_no_news_gets_the_progress(
    reporter: UpstreamReporter, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_reporter, "LOOK_S", 0.01)
    monkeypatch.setattr(upstream_reporter, "RETRY_S", 0.01)
    reporter.report_progress("t-0", 1, 10, [(1, 3)])
    reporter.start()
    try:
        wait_until(lambda: len(broker.reports) == 1)
        broker.ended = True
        wait_until(lambda: len(broker.reports) == 2)
    finally:
        reporter.stop()
    assert broker.reports == [Drained("lake", "t-0", 1, 10, ((1, 3),))] * 2


def test_losses_of_an_epoch_that_has_ended_are_not_reported(
    reporter: UpstreamReporter, broker: Broker
) -> None:
    reporter.report_progress("t-0", 1, 10, [(1, 3)])
    reporter.report_progress("t-0", 2, 0, ())
    reported(reporter)
    assert broker.reports == [Drained("lake", "t-0", 2, 0, ())]


def test_more_ranges_than_are_kept_are_joined_where_the_fewest_offsets_are_between(
    reporter: UpstreamReporter, broker: Broker
) -> None:
    """In any order; the ranges cover all losses, and little else."""
    far = [(it * 100, it * 100) for it in range(1, LOST_MAX)]
    reporter.report_progress("t-0", 1, 10, [*reversed(far), (50_000, 50_000), (50_007, 50_008)])
    reported(reporter)
    (report,) = broker.reports
    assert len(report.lost) == LOST_MAX
    assert broker.lost == {*(first for first, _ in far), *range(50_000, 50_009)}
