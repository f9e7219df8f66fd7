"""Places that a bridge drains to, and that can be cut: S3 behind a line (cut_line.py), and a disk.

A disk is a small file system in memory of its own:

    disk full    there is no room, or some for a part of a file
    disk away    what is above the root of the lake is gone, as when a share is not mounted
"""

import errno
import json
import os
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Protocol, Self

from tests.support import s3_server
from tests.support.cut_line import KINDS, CutLine, Kind

ANSWER_S = 180.0
FILES_A_BATCH = 16
BUCKET, PREFIX = "lake", "some"
# moto looks at who asks, and not at the signature.
SIGNED = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=0"
}


class Upstream(Protocol):
    """A context manager."""

    kinds: Sequence[str]  # of cuts

    @property
    def settings(self) -> str:
        """Of a [[bridge]] that drains there."""

    @property
    def lake(self) -> str:
        """Place of the drained files as Spark reads them; "": there are none."""

    @property
    def job(self) -> list[str]:
        """Arguments of the job that reads all of it into a table, but for the table."""

    def cut(self, kind: str) -> None:
        """From now on, until mend()."""

    def mend(self) -> None:
        """It is there again."""

    def reset(self) -> None:
        """Lose all files in flight."""

    def objects(self) -> list[str]:
        """Names of the drained files."""

    def contents(self) -> list[tuple[str, bytes]]:
        """Name and bytes of each."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class CutS3:
    """A bucket of its own on the server at `url`; the bridge gets there by a line, others directly."""

    kinds: Sequence[str] = KINDS

    def __init__(self, url: str, seed: int = 0) -> None:
        self._url = url
        self._bucket = f"{BUCKET}-{os.getpid()}-{time.monotonic_ns()}"
        self._line = CutLine(int(url.rpartition(":")[2]), seed)
        self.mend, self.reset = self._line.mend, self._line.reset

    def __enter__(self) -> Self:
        self._line.__enter__()
        s3_server.make_bucket(self._url, self._bucket)
        return self

    def __exit__(self, *_: object) -> None:
        self._line.__exit__()

    @property
    def settings(self) -> str:
        """See Upstream."""
        options = s3_server.options(f"http://127.0.0.1:{self._line.port}")
        lines = [f'to = "s3://{self._bucket}/{PREFIX}"', "[bridge.options]"]
        return "\n".join([*lines, *(f"{key} = {json.dumps(value)}" for key, value in options.items())])

    @property
    def lake(self) -> str:
        """See Upstream."""
        place = self._url.removeprefix("http://")
        query = f"region=us-east-1&scheme=http&endpoint_override={place}"
        return f"s3://test:test@{self._bucket}/{PREFIX}?{query}"

    @property
    def job(self) -> list[str]:
        """See Upstream."""
        return _job(self.lake)

    def cut(self, kind: str) -> None:
        """See Upstream."""
        chosen: dict[str, Kind] = {it: it for it in KINDS}
        self._line.cut(chosen[kind])

    def objects(self) -> list[str]:
        """By the server's own list."""
        found, more = [], ""
        while True:
            tree = ET.fromstring(self._fetched(f"?list-type=2&prefix={PREFIX}/{more}"))
            space = tree.tag.removesuffix("ListBucketResult")
            found += [it.text or "" for it in tree.iter(f"{space}Key")]
            token = tree.findtext(f"{space}NextContinuationToken")
            if token is None:
                return [it for it in found if ".brim" in it]
            more = f"&continuation-token={urllib.parse.quote(token)}"

    def contents(self) -> list[tuple[str, bytes]]:
        """See Upstream."""
        return [(name, self._fetched(f"/{urllib.parse.quote(name)}")) for name in self.objects()]

    def _fetched(self, what: str) -> bytes:
        request = urllib.request.Request(f"{self._url}/{self._bucket}{what}", headers=SIGNED)
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            found: bytes = answer.read()
        return found


class Lake:
    """A directory that is never cut."""

    kinds: Sequence[str] = ()

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to do."""

    @property
    def settings(self) -> str:
        """See Upstream."""
        return f"to = {json.dumps((self._directory / 'lake').as_uri())}"

    @property
    def lake(self) -> str:
        """See Upstream."""
        return str(self._directory / "lake")

    @property
    def job(self) -> list[str]:
        """See Upstream."""
        return _job(self.lake)

    def cut(self, kind: str) -> None:
        """Not possible."""
        raise AssertionError(f"a directory has no cut {kind}")

    def mend(self) -> None:
        """Nothing to do."""

    def reset(self) -> None:
        """Nothing to do."""

    def objects(self) -> list[str]:
        """See Upstream."""
        return [str(it.relative_to(self._directory)) for it in sorted(self._directory.rglob("[0-9]*.brim*"))]

    def contents(self) -> list[tuple[str, bytes]]:
        """See Upstream."""
        return [(name, (self._directory / name).read_bytes()) for name in self.objects()]


class CutDisk:
    """A file system of `size` bytes on `directory`, which is there and empty.  Needs root."""

    kinds: Sequence[str] = ("disk full", "disk away")

    def __init__(self, directory: Path, size: int, seed: int = 0) -> None:
        self._directory, self._size = directory, size
        self._random = Random(seed)
        self._share, self._away = directory / "share", directory / "away"
        self._ballast = directory / "ballast"

    def __enter__(self) -> Self:
        options = ["-t", "tmpfs", "-o", f"size={self._size}", "brim-test"]
        subprocess.run(["mount", *options, self._directory], check=True)
        self._share.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", self._directory], check=True)

    @property
    def settings(self) -> str:
        """See Upstream."""
        return f"to = {json.dumps((self._share / 'lake').as_uri())}"

    @property
    def lake(self) -> str:
        """See Upstream."""
        return str(self._share / "lake")

    @property
    def job(self) -> list[str]:
        """See Upstream."""
        return _job(self.lake)

    def cut(self, kind: str) -> None:
        """See Upstream."""
        if kind == "disk away":
            self._share.rename(self._away)
            return
        left = self._random.choice([0, self._random.randrange(1 << 19)])
        with self._ballast.open("wb") as file:
            while not self._filled(file.fileno(), left):
                pass

    def _filled(self, fd: int, left: int) -> bool:
        """True if so many bytes stay; False while a file was being written."""
        room = os.statvfs(fd)
        try:
            os.posix_fallocate(fd, 0, max(room.f_bavail * room.f_frsize - left, 1))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return False
        return True

    def mend(self) -> None:
        """See Upstream."""
        self._ballast.unlink(missing_ok=True)
        if self._away.exists():
            self._away.rename(self._share)

    def reset(self) -> None:
        """Without effect: no write is in flight once its process has ended."""

    def objects(self) -> list[str]:
        """See Upstream."""
        return [str(it.relative_to(self._share)) for it in sorted(self._share.rglob("[0-9]*.brim*"))]

    def contents(self) -> list[tuple[str, bytes]]:
        """See Upstream."""
        return [(name, (self._share / name).read_bytes()) for name in self.objects()]


def _job(lake: str) -> list[str]:
    return [lake, f"--option=maxFilesPerTrigger={FILES_A_BATCH}"]


def may_mount() -> bool:
    """True if this process may mount a file system."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
