"""A Spark standalone cluster on loopback: a master and a worker, each a Java of its own.

    with standalone_cluster(directory) as master:        # spark://127.0.0.1:PORT
        ...

Executors start with the environment of the worker, in which no package of the checkout can be found, and in
the worker's own directories. So they have what their Python has, and what a job sends.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.waiting import wait_until

STOP_S = 20
BARE = ("pyspark", "py4j")


def spark_home() -> Path:
    """The directory of the installed pyspark."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def site_packages(environment: Path) -> Path:
    """Directory with the packages of an environment."""
    return environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def bare_environment(directory: Path) -> Path:
    """A virtual environment with pyspark and nothing of Brim."""
    _created(directory)
    for package in _packages(BARE):
        (site_packages(directory) / package.name).symlink_to(package)
    return directory


def installed_environment(directory: Path, wheel: Path) -> Path:
    """A virtual environment with a wheel of Brim, and all libraries of the tests."""
    _created(directory)
    for package in _packages(("*",)):
        if package.suffix != ".pth" and not package.name.startswith(("__", "brim")):
            (site_packages(directory) / package.name).symlink_to(package)
    return _with_wheel(directory, wheel)


def packed_environment(directory: Path, wheel: Path, libraries: Iterable[str]) -> Path:
    """A virtual environment with a wheel of Brim, these libraries, and what both require, without links."""
    _created(directory)
    for package in sorted(_files_of(_closure(["brim", *libraries]) - {"brim"})):
        copy = shutil.copytree if package.is_dir() else shutil.copy2
        copy(package, site_packages(directory) / package.name)
    return _with_wheel(directory, wheel)


def _closure(names: Iterable[str]) -> set[str]:
    """Names of distributions, and of all that they require without an extra."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found:
            found.add(name)
            required = map(Requirement, metadata.requires(name) or ())
            waiting += [it.name for it in required if it.marker is None or it.marker.evaluate({"extra": ""})]
    return found


def _files_of(names: Iterable[str]) -> set[Path]:
    """Files and directories in site-packages of these distributions."""
    tops = {file.parts[0] for name in names for file in metadata.files(name) or ()} - {".."}
    return {spark_home().parent / top for top in tops if top != "__pycache__"}


def _created(directory: Path) -> None:
    venv.create(directory, symlinks=True, with_pip=False)


def _packages(patterns: Iterable[str]) -> list[Path]:
    return sorted({package for pattern in patterns for package in spark_home().parent.glob(pattern)})


def _with_wheel(directory: Path, wheel: Path) -> Path:
    install = [sys.executable, "-m", "pip", "--python", str(directory / "bin" / "python"), "install"]
    subprocess.run([*install, "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    return directory


@contextmanager
def standalone_cluster(directory: Path) -> Iterator[str]:
    """Start the master and a worker with one core; the URL of the master."""
    keep = {"HOME", "JAVA_HOME", "LANG", "TMPDIR"}
    clean = {name: value for name, value in os.environ.items() if name in keep}
    clean |= {"PATH": "/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    where = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with _daemon(directory / "master", clean, "master.Master", *where) as log:
        url = _found(log, r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
        wait_until(lambda: "I have been elected leader" in log.read_text())
        size = ["--cores", "1", "--memory", "1200m", "--work-dir", str(directory / "worker" / "work")]
        with _daemon(directory / "worker", clean, "worker.Worker", *where, *size, url) as worker_log:
            _found(worker_log, f"Successfully registered with master ({url})")
            yield url


@contextmanager
def _daemon(directory: Path, environment: Mapping[str, str], name: str, *arguments: str) -> Iterator[Path]:
    directory.mkdir(parents=True)
    log = directory / "log"
    command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield log
    finally:
        process.send_signal(signal.SIGTERM)  # a worker ends its executors first
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _found(log: Path, pattern: str) -> str:
    wait_until(lambda: re.search(pattern, log.read_text()))
    match = re.search(pattern, log.read_text())
    assert match is not None
    return match[1]
