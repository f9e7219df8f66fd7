"""Run a Spark job on drained files.

    brim spark bronze /srv/lake --to /srv/bronze          a Parquet table, each record exactly once
    brim spark report /srv/lake --to report.html          one page: gaps, volume, lag, late data
    brim spark JOB --help                                 options of a job; needs the extra `spark`

    brim spark --submit "--master spark://host:7077" bronze s3://b/lake --to s3a://b/bronze --format delta

Without --submit the job runs on this machine, in this process. With --submit, spark-submit runs it with the
given options; its command line is printed first. On a terminal a job shows its progress.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from edge.errors import EdgeError
from ringbuf.extras import install_extra

JOBS = {
    "bronze": "drained files to a table, each record exactly once",
    "kafka": "a Kafka topic to a table, each record exactly once",
    "silver": "drained files to a table with decoded payloads in typed columns",
    "latest": "the last record of each device",
    "windows": "count, minimum, mean and maximum by device and minute",
    "live": "the same as windows from arriving files, with watermarks",
    "gaps": "missing records between edges and table",
    "report": "one HTML page: gaps, volume, lag, late data, devices",
    "replay": "a range of the files to a table",
    "compact": "small files of a table to large files",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim spark`."""
    parser.add_argument("--submit", metavar="OPTIONS", help="run the job with spark-submit and these options")
    jobs = "\n".join(f"{name}: {description};" for name, description in JOBS.items())
    parser.add_argument("job", choices=JOBS, metavar="JOB", help=jobs)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="options of the job")


def run(arguments: argparse.Namespace) -> int:
    """Run the job and return its exit status."""
    if arguments.submit is None:
        status: int = _job(arguments.job).main(arguments.arguments)
        return status
    script = _job(arguments.job).__file__
    command = [spark_submit(), *shlex.split(arguments.submit), str(script), *arguments.arguments]
    print(shlex.join(command), file=sys.stderr, flush=True)
    return subprocess.run(command, check=False).returncode


def spark_submit() -> str:
    """Path of spark-submit: of SPARK_HOME, on PATH, or of the installed pyspark. Raises EdgeError."""
    home = os.environ.get("SPARK_HOME")
    program = (
        shutil.which("spark-submit", path=str(Path(home, "bin"))) if home else shutil.which("spark-submit")
    )
    if program is None and home is None:
        spec = importlib.util.find_spec("pyspark")
        places = spec.submodule_search_locations if spec else None
        program = shutil.which("spark-submit", path=str(Path(places[0], "bin"))) if places else None
    if program is None:
        raise EdgeError("there is no spark-submit here", hint=f"set SPARK_HOME, or {install_extra('spark')}")
    return program


def _job(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"bridge.spark.jobs.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"pyarrow", "pyspark", "numpy"}:
            raise
        hint = f"{install_extra('spark')}; docs/reference/spark.md has the options of each job"
        raise EdgeError(f"{error.name} is not installed", hint=hint) from error
