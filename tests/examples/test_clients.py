"""Reference clients in Go and JavaScript: the test vectors, and members of one group next to each other."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import brim
from edge.consumers.client_socket import RequestClient
from edge.consumers.delivery_settings import SettingInfo
from edge.consumers.protocol import VERSION, GroupList, Groups
from tests.support.brim_process import BrimProcess
from tests.support.consumer_vectors import VECTORS, vectors
from tests.support.project import ROOT

CLIENTS = ROOT / "examples" / "clients"
PATIENCE_S = 500  # the first build of a Go program compiles the standard library
GO = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}

pytestmark = pytest.mark.timeout(PATIENCE_S)


def run(*command: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env={**os.environ, **GO}, capture_output=True, text=True,
        check=False, timeout=PATIENCE_S,
    )  # fmt: skip


def needed(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"needs {program} on PATH")
    return found


@pytest.fixture(scope="module")
def go_client(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """The command of the Go client, compiled."""
    program = tmp_path_factory.mktemp("go") / "consumer"
    built = run(needed("go"), "build", "-o", program, ".", cwd=CLIENTS / "go")
    assert built.returncode == 0, built.stderr
    return [program]


@pytest.fixture
def node_client() -> list[object]:
    return [needed("node"), CLIENTS / "javascript" / "consumer.mjs"]


@pytest.fixture(params=["go_client", "node_client"])
def client(request: pytest.FixtureRequest) -> list[object]:
    command: list[object] = request.getfixturevalue(request.param)
    return command


def publish(broker: BrimProcess, *payloads: str, topic: str = "plant/1") -> None:
    brim.publish([(brim.Letter(topic), it) for it in payloads], runtime_dir=broker.runtime_dir)


def test_the_javascript_codec_is_that_of_the_vectors() -> None:
    done = run(needed("node"), CLIENTS / "javascript" / "vectors.mjs", VECTORS)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{len(vectors('request', 'answer', 'frame'))} vectors hold\n"


def test_the_javascript_check_sees_a_wrong_vector(tmp_path: Path) -> None:
    content = VECTORS.read_text().replace('{"op":"leave","id":3', '{"op":"leave","id":4')
    (tmp_path / "vectors.txt").write_text(content)
    done = run(needed("node"), CLIENTS / "javascript" / "vectors.mjs", tmp_path / "vectors.txt")
    assert done.returncode != 0
    assert "request leave" in done.stderr


def test_the_go_codec_is_that_of_the_vectors() -> None:
    done = run(needed("go"), "test", "-count=1", "./...", cwd=CLIENTS / "go")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_client_gets_records_and_the_next_one_continues_in_any_language(
    broker: BrimProcess, client: list[object]
) -> None:
    socket = broker.runtime_dir / "consumers.sock"
    publish(broker, "0", "zwölf", "2")
    publish(broker, "not for it", topic="load/1")
    publish(broker, "x" * 100_000)
    done = run(*client, socket, "billing", "plant/#", 2)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "0 plant/1 0\n1 plant/1 zwölf\n"
    with brim.consumer("billing", "plant/#", runtime_dir=broker.runtime_dir, batch_records=1) as records:
        batch = records.read(20.0)
        assert batch is not None
        assert list(map(bytes, batch)) == [b"2"]
        assert records.ack(batch)
    done = run(*client, socket, "billing", "plant/#", 1)
    assert done.stdout == f"4 plant/1 {'x' * 100_000}\n"


def test_a_client_sets_the_speed_of_its_group(broker: BrimProcess, client: list[object]) -> None:
    publish(broker, "0", "1", "2")
    done = run(*client, broker.runtime_dir / "consumers.sock", "again", "plant/#", 3, 1000.5)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "0 plant/1 0\n1 plant/1 1\n2 plant/1 2\n"
    with RequestClient(broker.runtime_dir) as requests:
        (info,) = requests.request(Groups(1, VERSION, "again"), GroupList)[0].groups
    assert info.settings["speed_permille"] == SettingInfo(1_000_500, "members")


def test_a_client_reports_a_refusal_with_its_code(broker: BrimProcess, client: list[object]) -> None:
    done = run(*client, broker.runtime_dir / "consumers.sock", "no/group", "plant/#", 1)
    assert done.returncode == 1
    assert "malformed" in done.stderr
    assert run(*client, broker.runtime_dir / "nothing.sock", "billing", "plant/#", 1).returncode == 1
    assert run(*client).returncode == 2
