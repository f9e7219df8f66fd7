"""Wheels for x86-64 and aarch64, for glibc (manylinux2014) and musl, and the source archive, into dist/.

    ./dev wheels [TARGET ...]

Each wheel is built from the source archive, so that a release contains what it is built from. zig compiles
for all targets on one machine; auditwheel checks the symbols and libraries that a wheel needs.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"

# By the tag of the wheel: the machine for zig, with the version of glibc.
TARGETS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
}


def main(targets: list[str]) -> int:
    """Build the archive and the wheels; print their names."""
    if unknown := set(targets) - set(TARGETS):
        print(f"unknown target {', '.join(sorted(unknown))}; allowed: {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    shutil.rmtree(DIST, ignore_errors=True)
    hatch(ROOT, "sdist", {})
    [archive] = DIST.iterdir()
    print(archive.relative_to(ROOT), flush=True)
    with tempfile.TemporaryDirectory(prefix="brim-wheels-") as scratch:
        subprocess.run(["tar", "-xzf", archive, "--no-same-owner", "-C", scratch], check=True)
        [project] = Path(scratch).iterdir()
        headers = machine_headers(Path(scratch, "include"))
        for tag in targets or TARGETS:
            wheel = build(project, tag, headers)
            audit(wheel, tag)
            print(wheel.relative_to(ROOT), flush=True)
    return 0


def machine_headers(directory: Path) -> Path:
    """Make a directory of headers for Debian's Python, which has its configuration for this machine only.

    That one serves all targets: they have 64 bits, little-endian, and the module uses the limited API.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = Path("/usr/include", str(sysconfig.get_config_var("MULTIARCH")), version, "pyconfig.h")
    for machine in ("x86_64-linux-gnu", "aarch64-linux-gnu"):
        place = directory / machine / version
        place.mkdir(parents=True)
        if own.exists():
            (place / own.name).symlink_to(own)
    return directory


def build(project: Path, tag: str, headers: Path) -> Path:
    """Build the wheel of a target."""
    environment = {
        "CC": f"{shlex.quote(sys.executable)} -m ziglang cc -target {TARGETS[tag]} -I{headers}",
        "CFLAGS": "-g0 -w",  # `./dev lint` reports warnings
        # Without -nostdlib a module needs zig's name of the musl library, which machines do not have. The
        # library itself is in the process already.
        "LDFLAGS": "-Wl,-s -nostdlib -lcompiler_rt" if "musl" in tag else "-Wl,-s",
        "_PYTHON_HOST_PLATFORM": tag,
    }
    hatch(project, "wheel", environment)
    [wheel] = DIST.glob(f"*-{tag}.whl")
    return wheel


def hatch(project: Path, kind: str, environment: dict[str, str]) -> None:
    """Build an archive of this kind into dist/."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(DIST)]
    subprocess.run(
        command, cwd=project, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, check=True
    )


def audit(wheel: Path, tag: str) -> None:
    """Check that the wheel runs where its tag promises."""
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if f'"{tag}"' not in " ".join(report.split()):
        sys.exit(f"{wheel.name} does not keep what its tag promises:\n{report}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
