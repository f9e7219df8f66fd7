"""Tests on aarch64: in a Debian root for arm64, whose programs qemu runs, into build/arm.

    ./dev arm [ARGUMENT ...]

Arguments go to pytest; without them it runs TESTS, which takes about half an hour. The root and its
packages stay for later runs. The wheel for aarch64 is built first, and the tests use its compiled module.

Emulation shows errors of instructions, of alignment and of system calls. It does not show errors of memory
order: qemu keeps the order of this machine. Pages have the size of this machine, too.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from deb import pip_for
from packaging.requirements import Requirement
from wheels import DIST, ROOT
from wheels import main as build_wheels

ARM = ROOT / "build" / "arm"
DEBIAN = ARM / "root"
TREE = DEBIAN / "brim"
TAG = "manylinux_2_17_aarch64"
PYTHON = "3.11"  # of Debian 12
TARGET = {"python_version": PYTHON, "python_full_version": f"{PYTHON}.2", "platform_machine": "aarch64"}
PACKAGES = ("python3", "gcc", "libc6-dev")
BINFMT = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")

# The C core (its own programs, the types, ring files, hot path of MQTT, layers), log and consumers above it.
TESTS = (
    "tests/ringbuf",
    "tests/edge/engine",
    "tests/edge/transport/test_websocket.py",
    "tests/edge/transport/test_tls_records.py",
    "tests/persistence/segment",
)
# Of locks/test.txt, what these import; locks/base.txt is installed as a whole.
NEEDED = {
    *("pytest", "pytest-asyncio", "pytest-timeout", "iniconfig", "pluggy", "packaging"),
    *("hypothesis", "sortedcontainers", "numpy", "psutil", "pyarrow", "typing-extensions"),
    *("cryptography", "trustme", "idna"),  # certificates
    *("hatchling", "pathspec", "trove-classifiers"),  # build.py
}

# The mounts end with the namespace. The first process is this shell, which waits for orphans.
INSIDE = """
mount -t proc proc proc && mount --bind /dev dev && mount -t tmpfs tmpfs tmp &&
mount -t tmpfs -o mode=1777 tmpfs dev/shm || exit
env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin PYTHONPATH="/brim:$1" \\
    chroot . /bin/sh -c 'cd /brim; shift; exec python3 -m pytest "$@"' sh "$@"
exit
"""


def main(arguments: list[str]) -> int:
    """Prepare the root, and run the tests. Returns the status of pytest."""
    if reason := missing():
        print(reason, file=sys.stderr)
        return 2
    if status := build_wheels([TAG]):
        return status
    make_root()
    unpack()
    site = install_packages()
    run = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", INSIDE, "sh", site]
    return subprocess.run([*run, *(arguments or TESTS)], cwd=DEBIAN, check=False).returncode


def missing() -> str:
    """Reason for which this machine cannot run the tests, with the remedy; empty if it can."""
    if os.geteuid() != 0:
        return "a Debian root needs root: run sudo ./dev arm"
    if shutil.which("debootstrap") is None:
        return "no debootstrap: apt-get install debootstrap"
    if os.uname().machine == "aarch64":
        return ""
    state = BINFMT.read_text() if BINFMT.exists() else ""
    if not state.startswith("enabled") or "F" not in state.partition("flags:")[2].partition("\n")[0]:
        return (
            f"programs for aarch64 do not run here ({BINFMT} is absent or without flag F): "
            "apt-get install qemu-user-static binfmt-support; update-binfmts --enable qemu-aarch64"
        )
    return ""


def make_root() -> None:
    """Install Debian, once."""
    if DEBIAN.exists():
        return
    print("installing Debian 12 for arm64, which takes some minutes", flush=True)
    partial = DEBIAN.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    include = f"--include={','.join(PACKAGES)}"
    command = ["debootstrap", "--arch=arm64", "--variant=minbase", include, "bookworm", str(partial)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    partial.rename(DEBIAN)


def unpack() -> None:
    """Put the source archive into the root, with the module of the wheel. Compiled C tests stay in build/."""
    for path in TREE.glob("*"):
        if path.name != "build":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    TREE.mkdir(exist_ok=True)
    [archive] = DIST.glob("*.tar.gz")
    command = ["tar", "-xzf", str(archive), "--strip-components=1", "--no-same-owner", "-C", str(TREE)]
    subprocess.run(command, check=True)
    [wheel] = DIST.glob(f"*-{TAG}.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extract("ringbuf/_ringbuf.abi3.so", TREE)


def install_packages() -> str:
    """Install the packages that the tests need, unless they are there. Returns their folder in the root."""
    locked = list(requirements())
    name = f"opt/{hashlib.sha256(''.join(locked).encode()).hexdigest()[:16]}"
    if not (DEBIAN / name).exists():
        file, partial = ARM / "requirements.txt", DEBIAN / "opt" / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        file.write_text("".join(locked))
        pip = pip_for(partial, "aarch64", PYTHON)
        subprocess.run([*pip, "--require-hashes", f"--requirement={file}"], check=True)
        partial.rename(DEBIAN / name)
    return f"/{name}"


def requirements() -> list[str]:
    """Lines of the locks that the root needs, with hashes. No markers: pip applies them to this machine."""
    found: dict[str, str] = {}
    for lock in ("base", "test"):
        for block in (ROOT / "locks" / f"{lock}.txt").read_text().replace("\\\n", "").splitlines():
            head, *hashes = block.split(" --hash=")
            wanted = Requirement(head.strip())
            if (lock == "base" or wanted.name in NEEDED) and (
                wanted.marker is None or wanted.marker.evaluate(TARGET)
            ):
                text = "".join(f" --hash={it.strip()}" for it in hashes)
                found[wanted.name] = f"{wanted.name}{wanted.specifier}{text}\n"
    return list(found.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
