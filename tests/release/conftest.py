"""A clean Debian, made once for the tests of packages and images."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = {"systemd-nspawn": "systemd-container", "dpkg-deb": "dpkg"}  # otherwise as the program


def mirror() -> str:
    """Mirror of this machine's packages."""
    for file in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")):
        for line in file.read_text().splitlines() if file.exists() else ():
            if line.startswith(("URIs:", "deb ")):
                return line.split()[1]
    pytest.skip("no source of Debian packages is configured")


def need(*programs: str) -> None:
    """Skip the test without root, or without one of these programs."""
    missing = [PACKAGES.get(name, name) for name in programs if shutil.which(name) is None]
    fix = f": apt-get install {' '.join(missing)}" if missing else ""
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root, and {', '.join(programs)}{fix}")


def debootstrap(root: Path, *options: str) -> None:
    """Make a Debian 12 with the packages that every Debian has."""
    root.chmod(0o755)  # services run as other users
    command = ["debootstrap", "--variant=minbase", *options, "bookworm", str(root), mirror()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="session")
def clean_debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Root directory of a clean Debian 12 with systemd."""
    need("debootstrap", "systemd-nspawn", "dpkg-deb")
    root = tmp_path_factory.mktemp("debian")
    debootstrap(root, "--include=systemd,systemd-sysv,dbus,adduser,python3")
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
