"""Debian package of Brim, into dist/: built from a wheel in dist/ and the wheels of its dependencies.

    ./dev deb [--arch amd64|arm64] [--python 3.11]

Completion and manual pages are made by the command in .venv, which `./dev deb` prepares.

Debian 12 has none of the dependencies, so the package has them in /usr/lib/brim. Their compiled modules fit
one version of Python: 3.11 is that of Debian 12, 3.13 that of Debian 13. release/debian has the scripts and
the configuration; edge/cli/service_unit.py has the units.
"""

import argparse
import gzip
import hashlib
import runpy
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
FILES = ROOT / "release" / "debian"
PYTHON = ROOT / ".venv" / "bin" / "python"
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/brim",
    "zsh": "usr/share/zsh/vendor-completions/_brim",
    "fish": "usr/share/fish/vendor_completions.d/brim.fish",
}
SYSTEMD = {"3.11": 252, "3.13": 257}  # its version in the Debian of each Python
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}

CONTROL = """\
Package: brim
Version: {version}
Architecture: {arch}
Maintainer: Brim developers <brim@localhost>
Installed-Size: {kib}
Depends: python3 (>= {python}), python3 (<< {next_python}~), adduser, init-system-helpers
Recommends: openssl
Section: net
Priority: optional
Description: low-latency in-memory edge MQTT broker
 Devices publish by MQTT. Programs of the same machine read shared memory
 without a copy. A log keeps records over a power cut, and a bridge drains
 them to an object store, Kafka or another broker.
"""

COMMAND = """\
#!/usr/bin/python3 -I
import sys

sys.path.insert(0, "/usr/lib/brim")
sys.argv[0] = "/usr/bin/brim"

from brim._command import main

sys.exit(main())
"""

# Programs of Debian's Python import Brim by this module. Other programs do not see the bundled packages.
MODULE = '''\
"""Brim, which the package brim has in /usr/lib/brim."""

import importlib
import sys

sys.path.insert(0, "/usr/lib/brim")
del sys.modules["brim"]
importlib.import_module("brim")
'''


def main() -> int:
    """Build the package; print its name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", choices=MACHINES, default="amd64")
    parser.add_argument("--python", default="3.11")
    arguments = parser.parse_args()
    wheels = list(DIST.glob(f"brim-*-manylinux_2_17_{MACHINES[arguments.arch]}.whl"))
    if len(wheels) != 1:
        sys.exit(f"no wheel for {arguments.arch} in dist/; make it: ./dev wheels")
    with tempfile.TemporaryDirectory(prefix="brim-deb-") as scratch:
        root = Path(scratch)
        root.chmod(0o755)
        install(wheels[0], root / "usr/lib/brim", arguments.python)
        add_files(root, arguments.python)
        add_control(root, arguments.arch, arguments.python)
        package = DIST / f"brim_{version()}_{arguments.arch}.deb"
        command = ["dpkg-deb", "--root-owner-group", "--build", str(root), str(package)]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    print(package.relative_to(ROOT))
    return 0


def version() -> str:
    """Version of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def install(wheel: Path, folder: Path, python: str) -> None:
    """Install the wheel and the locked dependencies for another machine or Python."""
    common = pip_for(folder, wheel.stem.partition("manylinux_2_17_")[2], python)
    lock = ROOT / "locks" / "web.txt"  # with the web console
    subprocess.run([*common, "--require-hashes", f"--requirement={lock}"], check=True)
    shutil.rmtree(folder / "bin", ignore_errors=True)  # pip would warn of it
    subprocess.run([*common, str(wheel)], check=True)
    shutil.rmtree(folder / "bin", ignore_errors=True)
    for cache in list(folder.rglob("__pycache__")):
        shutil.rmtree(cache)


def pip_for(folder: Path, machine: str, python: str) -> list[str]:
    """Command that installs wheels for another machine or Python."""
    platforms = [f"--platform=manylinux{it}_{machine}" for it in ("2014", "_2_28", "_2_27", "_2_26", "_2_17")]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    return [*command, "--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *platforms]


def add_files(root: Path, python: str) -> None:
    """Add the command, the units, the configuration and the documents."""
    write(root / "usr/bin/brim", COMMAND, 0o755)
    write(root / "usr/lib/python3/dist-packages/brim.py", MODULE)
    for name, instance in (("brim", ""), ("brim@", "%i")):
        write(root / f"lib/systemd/system/{name}.service", unit(instance, SYSTEMD.get(python, 0)))
    write(root / "etc/brim/brim.toml", (FILES / "brim.toml").read_text(), 0o640)
    write(root / "usr/share/doc/brim/copyright", (ROOT / "LICENSE").read_text())
    for shell, name in COMPLETIONS.items():
        words = [PYTHON, "-m", "edge", "completion", shell]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
        write(root / name, done.stdout)
    add_manual(root / "usr/share/man/man1")
    for folder in (root / "usr", root / "etc", root / "lib"):
        for path in (folder, *folder.rglob("*")):
            if path.is_dir():
                path.chmod(0o755)


def add_manual(folder: Path) -> None:
    """Add the manual pages, compressed without a time, so that the package is the same each time."""
    folder.mkdir(parents=True)
    subprocess.run([PYTHON, "-m", "docs.generate.manual", folder], cwd=ROOT, check=True)
    for page in list(folder.iterdir()):
        packed = page.with_name(f"{page.name}.gz")
        packed.write_bytes(gzip.compress(page.read_bytes(), mtime=0))
        packed.chmod(0o644)
        page.unlink()


def unit(instance: str, systemd: int) -> str:
    """The unit of the service, or of its instances."""
    names = runpy.run_path(str(ROOT / "edge" / "cli" / "service_unit.py"))
    config = f"/etc/brim/{instance or 'brim'}.toml"
    option = f"--instance {instance} " if instance else ""
    command = f"/usr/bin/brim run --quiet --log-format json {option}--config {config}"
    text: str = names["Unit"](is_system=True, instance=instance, systemd=systemd).text(command)
    return text.replace("edit brim-%i", "edit brim@NAME")


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file with its mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def add_control(root: Path, arch: str, python: str) -> None:
    """Add the control files of dpkg."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    sums = "".join(f"{_md5(path)}  {path.relative_to(root)}\n" for path in files)
    major, _, minor = python.partition(".")
    fields = {
        "version": version(),
        "arch": arch,
        "kib": sum(path.stat().st_size for path in files) // 1024,
        "python": python,
        "next_python": f"{major}.{int(minor) + 1}",
    }
    control = root / "DEBIAN"
    write(control / "control", CONTROL.format(**fields))
    write(control / "md5sums", sums)
    write(control / "conffiles", "/etc/brim/brim.toml\n")
    for name in ("postinst", "prerm", "postrm"):
        write(control / name, (FILES / name).read_text(), 0o755)


def _md5(path: Path) -> str:
    """Checksum as dpkg has it."""
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
