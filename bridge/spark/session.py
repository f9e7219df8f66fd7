"""Spark session with the data source "brim", without start messages and closed to other machines.

Under spark-submit the cluster's settings apply, and this module only registers the source. Otherwise it
starts Spark on this machine: bound to 127.0.0.1, without a web page, times in UTC, and without the log lines
that Spark writes at each start. Python workers use Unix sockets in the directory for temporary files, which
is a sixth faster than TCP. TCP is used if that path is too long.

Spark needs Java 17 or newer. An error names a missing component and the command that installs it.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.errors import SparkUnavailable
from ringbuf.extras import install_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_OLDEST = 17  # PySpark 4.3; also tried on 21 and 25
INSTALL_JAVA = "apt-get install openjdk-17-jre-headless"

LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.daemon.module": "bridge.spark.quiet_workers",
    "spark.sql.python.filterPushdown.enabled": "true",  # needed by option pushDown
    "spark.sql.shuffle.partitions": "4",  # for one machine; Spark's default is 200
    "spark.ui.showConsoleProgress": "false",
}
SOCKET = "spark.python.unix.domain.socket"
SOCKET_NAME_BYTES = len("/.") + 36 + len(".sock")  # a UUID; as in PySpark's daemon.py, and in Spark
UNIX_PATH_MAX_BYTES = 107  # size of the path in sockaddr_un

# Only errors, and no line at the start.
JAVA_OPTIONS = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def session(name: str, *, master: str = "", settings: Mapping[str, str] | None = None) -> SparkSession:
    """The active session, or a new one.

    `master`: the place to run, unless under spark-submit; default "local[*]", all cores of this machine.
    `settings` override all others. Raises SparkUnavailable.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkUnavailable("pyspark is not installed", hint=install_extra("spark")) from error
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName(name)
    if not submitted and SparkSession.getActiveSession() is None:
        check_java()
        builder = builder.master(master or "local[*]").config(map={**LOCAL, **_sockets()})
        _prepare_environment()
        builder = builder.config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
    spark = builder.config(map=dict(settings or {})).getOrCreate()
    atexit.unregister(_stop)
    atexit.register(_stop)
    from bridge.spark.data_source import BrimDataSource

    spark.dataSource.register(BrimDataSource)
    return spark


def _sockets() -> dict[str, str]:
    """Settings of the sockets between Spark and Python: Unix sockets if their paths fit, otherwise TCP."""
    directory = tempfile.gettempdir()
    if len(os.fsencode(directory)) + SOCKET_NAME_BYTES > UNIX_PATH_MAX_BYTES:
        return {f"{SOCKET}.enabled": "false"}
    return {f"{SOCKET}.enabled": "true", f"{SOCKET}.dir": directory}


def _stop() -> None:
    """Stop Spark before Python ends, so that its workers end first."""
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    with suppress(Py4JError, OSError):  # Java has ended already
        if active := SparkSession.getActiveSession():
            active.stop()


def check_java() -> int:
    """Version of the Java that Spark will use. Raises SparkUnavailable: not found, or too old."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if java is None:
        where = f"no java in JAVA_HOME, {home}" if home else "no java on PATH"
        raise SparkUnavailable(f"{where}; Spark needs Java {JAVA_OLDEST} or newer", hint=INSTALL_JAVA)
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    if match is None or int(match[1]) < JAVA_OLDEST:
        version = match[1] if match else output.strip().partition("\n")[0]
        raise SparkUnavailable(
            f"{java} is Java {version}; Spark needs {JAVA_OLDEST} or newer", hint=INSTALL_JAVA
        )
    return int(match[1])


def _prepare_environment() -> None:
    """Set the environment for the processes that Spark starts here: this Python, these packages."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    root = str(Path(__file__).resolve().parents[2])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, paths)])
