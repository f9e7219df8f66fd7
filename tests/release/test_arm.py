"""`./dev arm`: tests run on aarch64, with the module of the wheel."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.project import ROOT

BINFMT = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_tests_run_on_aarch64() -> None:
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("needs root and debootstrap: apt-get install debootstrap")
    if os.uname().machine != "aarch64" and not BINFMT.exists():
        pytest.skip("needs programs for aarch64 to run: apt-get install qemu-user-static binfmt-support")
    chosen = ["tests/ringbuf/test_writer.py", "tests/ringbuf/test_golden.py"]
    command = [str(ROOT / "dev"), "arm", "-q", *chosen]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
    module = ROOT / "build" / "arm" / "root" / "brim" / "ringbuf" / "_ringbuf.abi3.so"
    assert module.read_bytes()[18:20] == (183).to_bytes(2, "little")  # EM_AARCH64
