"""release/Containerfile, built by buildah and run by podman, as docs/how-to/container.md shows it.

The base image is a Debian that debootstrap makes: a registry of images is not needed.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.release.conftest import debootstrap, need
from tests.support.containerfile import stages_of
from tests.support.project import ROOT
from tests.support.waiting import wait_until

FILE = ROOT / "release" / "Containerfile"
[BASE] = {stage.base for stage in stages_of(FILE)}
CERTIFICATES = "/etc/pip-certificates.crt"  # of this machine, in the container of the build
CONFINED = ("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--network=none")
# Below the limits of this process, which podman raises otherwise.
LIMITS = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=2000:2000")

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1200)]


class Engine:
    """buildah and podman with a storage of their own."""

    def __init__(self, directory: Path) -> None:
        self._storage = [f"--root={directory}/storage", f"--runroot={directory}/run"]
        self._storage.append("--storage-driver=overlay")

    def buildah(self, *words: str) -> str:
        """Output of a command of buildah, run in the repository."""
        return self._run(["buildah", *self._storage, *words])

    def podman(self, *words: str) -> str:
        """Output of a command of podman; without systemd as the manager of groups and timers."""
        return self._run([*self._podman(), *words])

    def status(self, *words: str) -> int:
        """Exit status of a command of podman."""
        return subprocess.run([*self._podman(), *words], capture_output=True, check=False).returncode

    def start(self, name: str, *words: str, options: tuple[str, ...] = ()) -> None:
        """Start a container of the image. No systemd runs its health checks: is_healthy() does."""
        own = ("--runtime=runc", "--health-interval=disable", *LIMITS)
        self.podman("run", "--detach", f"--name={name}", *own, *CONFINED, *options, "localhost/brim", *words)

    def is_healthy(self, name: str) -> bool:
        """Result of the health check of the image."""
        return self.status("healthcheck", "run", name) == 0

    def _podman(self) -> list[str]:
        return ["podman", *self._storage, "--cgroup-manager=cgroupfs", "--events-backend=file"]

    @staticmethod
    def _run(command: list[str]) -> str:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}:\n{done.stderr[-4000:]}"
        return done.stdout.strip()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine that has built the image."""
    need("debootstrap", "buildah", "podman", "runc")
    directory = tmp_path_factory.mktemp("engine")
    base = directory / "base"
    base.mkdir()
    debootstrap(base)
    engine = Engine(directory)
    container = engine.buildah("from", "scratch")
    engine.buildah("add", "--quiet", container, str(base), "/")
    engine.buildah("commit", "--quiet", "--rm", container, f"docker.io/library/{BASE}")
    options = ("--isolation=chroot", "--network=host", "--pull-never", "--format=docker")
    engine.buildah(
        "build", *options, *settings_of_pip(directory), f"--file={FILE}", "--tag=localhost/brim", "."
    )
    yield engine
    engine.podman("rm", "--all", "--force", "--time=5")
    engine.podman("rmi", "--all", "--force")
    shutil.rmtree(directory)


def settings_of_pip(directory: Path) -> list[str]:
    """Options that give the build the index and the certificates that pip has here."""
    values = {"index-url": os.environ.get("PIP_INDEX_URL", "")}
    mounts = [(directory / "pip.conf", "/etc/pip.conf")]
    if certificates := os.environ.get("PIP_CERT"):
        values["cert"] = CERTIFICATES
        mounts.append((Path(certificates), CERTIFICATES))
    lines = [f"{name} = {value}" for name, value in values.items() if value]
    (directory / "pip.conf").write_text("\n".join(["[global]", *lines, ""]))
    return [f"--volume={here}:{there}:ro" for here, there in mounts]


def test_the_image_serves_read_only_without_privileges_and_keeps_its_state(engine: Engine) -> None:
    engine.start("broker", options=("--volume=state:/var/lib/brim", "--hostname=edge-7"))
    wait_until(lambda: engine.is_healthy("broker"))
    assert engine.podman("exec", "broker", "id", "-u") == "10001"
    assert engine.status("exec", "broker", "touch", "/outside") == 1
    assert engine.status("exec", "broker", "sh", "-c", "command -v gcc") == 127
    memory = engine.podman("exec", "broker", "df", "--output=size", "-B", "1K", "/dev/shm")
    assert int(memory.split()[-1]) <= 64 << 10
    assert '"edge_id": "edge-7"' in engine.podman("exec", "broker", "brim", "status", "--json")
    engine.podman("exec", "broker", "brim", "pub", "plant/1", "21.5", "-r", "-q", "1")
    engine.podman("stop", "broker")
    assert engine.podman("inspect", "--format={{.State.ExitCode}}", "broker") == "0"
    engine.podman("rm", "broker")
    engine.start("again", options=("--volume=state:/var/lib/brim", "--hostname=edge-7"))
    wait_until(lambda: engine.is_healthy("again"))
    assert engine.podman("exec", "again", "brim", "sub", "plant/1", "-C", "1") == "21.5"


def test_a_container_whose_broker_does_not_answer_is_not_healthy(engine: Engine) -> None:
    engine.start("asleep", "600", options=("--entrypoint=sleep",))
    assert not engine.is_healthy("asleep")


def test_a_wrong_configuration_ends_the_container_with_the_status_of_wrong_configurations(
    engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "brim.toml").write_text("edge_idd = 1\n")
    engine.start("wrong", options=(f"--volume={tmp_path}/brim.toml:/etc/brim/brim.toml:ro",))
    assert engine.podman("wait", "wrong") == "78"
