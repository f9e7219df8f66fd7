"""Tasks and commands: each command of Brim in docs/reference/tasks.md does its task."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support.children import Child
from tests.support.directories import memory_directory
from tests.support.documented import COMMAND_S, Newcomer
from tests.support.project import ROOT
from tests.support.waiting import wait_until

PAGE = ROOT / "docs/reference/tasks.md"
TASKS_MIN = 60
STATUS = {
    "sub plant/none": 5,
    "config diff": 1,
}  # exit status of commands with this text: time over; a difference
ROW = re.compile(r"^\| ([^|`]+) \| `(.+?)` \| `(.+?)` \|$", re.MULTILINE)
CONFIGURATION = """
[[stream]]
name = "plant"
topics = ["plant/#"]
durability = "interval"
ring_bytes = 1048576

[[bridge]]
name = "lake"
to = "file:///srv/lake"
"""
COMMAND = """#!/bin/sh
case $1 in
pub|sub|bench|request|reply|sim) more="--port {port}";;
esac
exec {python} -m edge "$@" $more
"""

DEVICE = """
import asyncio, sys
from brim.asyncio import connect

async def publish(url):
    async with connect(url, client_id="sensor-1") as client:
        await client.publish("plant/1/state", b"on", qos=1, retain=True)
        await client.publish("old/state", b"off", qos=1, retain=True)
        print("ready")
        while True:
            for topic in ("plant/1/temp", "plant/1/noise", "plant/2/temp"):
                await client.publish(topic, b"21.5", qos=1)
            await asyncio.sleep(0.02)

while True:
    try:
        asyncio.run(publish(sys.argv[1]))
    except OSError:
        pass
"""  # connects again after each disconnect


class Task(NamedTuple):
    """One row of the page."""

    name: str
    command: str
    other: str


TASKS = [Task(*row) for row in ROW.findall(PAGE.read_text())]
SHOWN = {  # a regular expression in the output of the commands that begin so; the longest beginning counts
    "brim --help": "publish messages",
    "brim --version": r"brim \d+\.",
    "brim sql": "plant/",
    "brim sql --since -1h -o": "",
    "brim bench": "received",
    "brim bridge backfill": "plant",
    "brim bridge pause": "paused",
    "brim bridge resume": "resumed",
    "brim bridge skip": "plant|nothing waits",  # the bridge may have drained everything
    "brim bridge status": "0 lost",
    "brim check": "no mistakes",
    "brim clients": "sensor-1",
    "brim clients --dropping": "",
    "brim clients forget": "dashboard",
    "brim clients kick": "sensor-1",
    "brim clients show": "plant/#",
    "brim completion": "complete",
    "brim config diff": "listener.0.port",
    "brim config init": "",
    "brim config show": r"limits\.qos_max",
    "brim config set": "limits.topics_max = 50000",
    "brim consumers": "",
    "brim context": "",
    "brim context ls": r"plant \*",
    "brim passwd": "ann",
    "brim pub": "",
    "brim replay": "21.5",
    "brim replay -t 'plant/1/temp' -C 3 --to": "",
    "brim reload": "",
    "brim request": "running",
    "brim retained": "plant/1/state",
    "brim retained clear": "1",
    "brim retained get": "on",
    "brim segments export": "plant/1/temp",
    "brim segments ls": "active",
    "brim segments verify": "",
    "brim service install --print": "ExecStart=",
    "brim sim": "",
    "brim sim devices.toml": r"[1-9]\d* published, 0 failed",
    "brim status": "plant",
    "brim streams": "plant-0",
    "brim sub": r"21\.5|on|x",
    "brim sub --help": "--retained-only",
    "brim sub plant/none": "",
    "brim tap": "plant/1",
    "brim top": "plant",
    "brim top --once --clients": "sensor-1",
    "brim topics": "temp",
}


class Desk(Newcomer):
    """A directory with the files of the page, and a broker with devices that publish."""

    def prepare(self) -> None:
        """Files that the commands of the page name."""
        (self.directory / "lines.txt").write_text("one\ntwo\n")
        (self.directory / "image.bin").write_bytes(b"x" * 1000)
        (self.directory / "secret.txt").write_text("secret\n")

    def command(self, text: str) -> subprocess.CompletedProcess[str]:
        """Result of a shell command in which `brim` and port 1883 are those of this test."""
        brim = self.directory / "bin" / "brim"
        brim.parent.mkdir(exist_ok=True)
        brim.write_text(COMMAND.format(port=self.ports["mqtt"], python=sys.executable))
        brim.chmod(0o755)
        text = text.replace(":1883", f":{self.ports['mqtt']}")
        path = f"{brim.parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            text, shell=True, cwd=self.directory, env={**os.environ, **self.environment, "PATH": path},
            capture_output=True, text=True, timeout=COMMAND_S, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """One broker for all commands, which may run in any order."""
    with memory_directory() as memory:
        desk = Desk(tmp_path_factory.mktemp("desk"), memory)
        desk.prepare()
        with desk.broker(CONFIGURATION), Child(DEVICE, f"mqtt://127.0.0.1:{desk.ports['mqtt']}") as device:
            device.lines_until("ready")
            desk.command("brim sub -c -i dashboard -q 1 'plant/#' -C 1")  # leaves a session
            wait_until(lambda: desk.command("brim segments export --to - -t 'plant/1/temp'").stdout)
            desk.command("brim config init > first.toml; brim sim --init > devices.toml")
            with desk.start("reply", "plant/cmd", "running") as replies:
                replies.patience_s = COMMAND_S
                yield desk


def test_the_page_has_sixty_tasks_each_once() -> None:
    assert len({task.name for task in TASKS}) == len(TASKS)
    assert len({task.command for task in TASKS}) == len(TASKS) >= TASKS_MIN
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) == len(TASKS), "a row has another form"


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_command_does_its_task(task: Task, desk: Desk) -> None:
    if task.command.startswith("brim context"):  # an earlier row may have run in another process
        desk.command("brim context add plant --host 127.0.0.1 --port 1883; brim context use plant")
    done = desk.command(task.command)
    expected = next((status for text, status in STATUS.items() if text in task.command), 0)
    assert done.returncode == expected, f"status {done.returncode}\n{done.stdout}{done.stderr}"
    begins = max((it for it in SHOWN if task.command.startswith(it)), key=len)
    assert re.search(SHOWN[begins], done.stdout), done.stdout + done.stderr
