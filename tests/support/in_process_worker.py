"""A worker of the log's maintenance without a process of its own."""

from persistence.archive import Archived
from persistence.files import Files
from persistence.maintenance.background_process import Job, TaskFailed, do_job
from persistence.maintenance.scrub import ScrubResult


class InProcessWorker:
    """Executes jobs in the calling thread, on any files."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._result: Archived | ScrubResult | TaskFailed | None = None

    def start(self, job: Job) -> None:
        """See Worker.  The job is done on return."""
        self._result = do_job(self._files, job, lambda: False)

    def result(self) -> Archived | ScrubResult | TaskFailed | None:
        """See Worker."""
        result, self._result = self._result, None
        return result

    def close(self) -> None:
        """See Worker."""
