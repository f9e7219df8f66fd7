"""Work of the maintenance that does not end: it keeps no room, and leaves no archive of a removed segment."""

from dataclasses import replace

import pytest

from persistence.archive import archive_name
from persistence.maintenance.background_process import Job
from persistence.maintenance.maintenance import HELD_UP_S, MaintenanceRules
from tests.persistence.maintenance.test_maintenance import NO_SCRUB, filled
from tests.support.in_process_worker import InProcessWorker
from tests.support.logs import DIRECTORY
from tests.support.simulated_maintenance import Kept


class Stuck(InProcessWorker):
    """A worker that never answers: stopped, or behind a disk that serves everybody else first."""

    closed = 0

    def start(self, job: Job) -> None:
        self.job = job

    def result(self) -> None:
        return None

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("archive", [True, False])
def test_idle_work_that_does_not_end_keeps_no_room_from_a_full_disk(archive: bool) -> None:
    kept = Kept(filled(), MaintenanceRules(archive=archive))
    worker = kept.maintenance._worker = Stuck(kept.written.files)
    before = kept.bases()
    kept.steps(3)
    assert worker.job.base == before[0]
    assert (kept.bases(), worker.closed) == (before, 0)
    kept.written.files.total_bytes, kept.written.files.free_bytes = 100 << 20, 10 << 20
    kept.steps(3)
    assert (kept.bases(), worker.closed) == (before[3:], 3)


def test_work_that_does_not_end_keeps_no_segment_beyond_the_cap_of_the_log() -> None:
    kept = Kept(filled(), NO_SCRUB)
    worker = kept.maintenance._worker = Stuck(kept.written.files)
    kept.steps(3)
    before = kept.bases()
    kept.maintenance._retention = replace(kept.maintenance._retention, retain_bytes=1 << 15)
    kept.steps(3)
    assert (kept.bases(), worker.closed) == (before, 0)  # an archive may make room
    kept.clocks.pass_by(HELD_UP_S)
    kept.steps(1)
    assert (kept.bases(), worker.closed) == (before[1:], 1)


def test_an_archive_that_was_completed_in_time_does_not_outlive_its_segment() -> None:
    """The next start would read it, and later segments that were removed are missing behind it."""

    class Unheard(Stuck):
        start = InProcessWorker.start

    kept = Kept(filled(), NO_SCRUB)
    kept.maintenance._worker = Unheard(kept.written.files)
    kept.steps(3)
    first = kept.bases()[0]
    assert archive_name(first) in kept.written.files.listdir(DIRECTORY)
    kept.maintenance._retention = replace(kept.maintenance._retention, retain_bytes=1 << 15)
    kept.clocks.pass_by(HELD_UP_S + 1)
    kept.steps(1)
    assert first not in kept.bases()
    assert archive_name(first) not in kept.written.files.listdir(DIRECTORY)


def test_segments_are_not_looked_at_again_and_again_while_the_worker_works() -> None:
    """A log may have thousands, and the worker works for days."""
    kept = Kept(filled(), NO_SCRUB)
    kept.maintenance._worker = Stuck(kept.written.files)
    kept.steps(1)
    kept.maintenance._retention = None  # type: ignore[assignment]  # a look would raise
    kept.steps(5)
