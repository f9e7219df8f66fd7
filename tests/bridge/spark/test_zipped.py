"""The zip for executors on which nothing can be installed: it decodes with nothing else at hand."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")

from bridge.spark import zipped
from tests.support.drained_files import store, unit_of

CODE = """
import sys
from bridge import drained
from bridge.spark.columns import TYPES
from bridge.spark.decode import compiled, decode_file, decoder_of
from bridge.spark.landing import Landing
import msgpack
assert all(".zip" in module.__file__ for module in (drained, msgpack)), (drained, msgpack)
assert compiled() is None
landing = Landing(sys.argv[1])
for stored in landing.files():
    for decoded in decode_file(landing.read(stored.path, stored.length), TYPES, decoder_of("auto")):
        print(decoded.first_offset, decoded.rows, decoded.columns["payload"].to_pylist()[-1].decode())
"""


def test_files_are_read_from_the_zip_alone(tmp_path: Path) -> None:
    target = tmp_path / "brim.zip"
    assert zipped.main([str(target)]) == 0
    store(tmp_path / "lake", unit_of(0, 9), unit_of(10, 29, drain_seq=2))
    packages = sysconfig.get_path("platlib")
    done = subprocess.run(
        [sys.executable, "-S", "-c", CODE, str(tmp_path / "lake")],  # -S: without what is installed editable
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(target), packages])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.split("\n")[:2] == ["0 10 9", "10 20 29"]


def test_the_same_files_give_the_same_zip(tmp_path: Path) -> None:
    for name in ("one.zip", "two.zip"):
        zipped.write(tmp_path / name)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.zip", "two.zip"]
