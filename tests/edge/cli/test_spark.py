"""brim spark without the extra `spark`."""

import subprocess
import sys

import pytest

from edge.cli.spark import JOBS
from ringbuf.extras import install_extra
from tests.support.project import ROOT

WITHOUT = "import sys; sys.modules['pyspark'] = None; from edge.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize("words", [["--help"], ["latest", "--help"]])
def test_help_without_pyspark_lists_the_jobs_or_names_the_page_with_their_options(words: list[str]) -> None:
    command = [sys.executable, "-c", WITHOUT, "spark", *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if words == ["--help"]:
        assert ended.returncode == 0
        assert all(job in ended.stdout for job in JOBS)
        return
    page = "docs/reference/spark.md"
    error, hint = ended.stderr.splitlines()
    assert error.endswith("is not installed")
    assert hint == f"  {install_extra('spark')}; {page} has the options of each job"
    assert (ROOT / page).read_text().count("## brim spark ") == len(JOBS)
