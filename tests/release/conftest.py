"""A clean Debian, made once for the tests of packages and images."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

NEEDED = ("debootstrap", "systemd-nspawn", "dpkg-deb")
MISSING = [name for name in NEEDED if shutil.which(name) is None]


def mirror() -> str:
    """Mirror of this machine's packages."""
    for file in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")):
        for line in file.read_text().splitlines() if file.exists() else ():
            if line.startswith(("URIs:", "deb ")):
                return line.split()[1]
    pytest.skip("no source of Debian packages is configured")


@pytest.fixture(scope="session")
def clean_debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Root directory of a clean Debian 12 with systemd."""
    if MISSING or os.geteuid() != 0:
        pytest.skip(
            f"needs root and {', '.join(MISSING or NEEDED)}: apt-get install debootstrap systemd-container"
        )
    root = tmp_path_factory.mktemp("debian")
    root.chmod(0o755)  # services run as other users
    with_systemd = "--include=systemd,systemd-sysv,dbus,adduser,python3"
    command = ["debootstrap", "--variant=minbase", with_systemd, "bookworm", str(root), mirror()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    yield root
    shutil.rmtree(root)


@pytest.fixture
def debian(clean_debian: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the clean Debian for one test."""
    tmp_path.chmod(0o755)
    root = tmp_path / "debian"
    subprocess.run(["cp", "--archive", "--reflink=auto", clean_debian, root], check=True)
    yield root
    shutil.rmtree(root)
