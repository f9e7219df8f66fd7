"""A web console as a process, and a client that keeps its cookie and CSRF token, as a page does."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from edge.auth.password_file import change_user
from edge.auth.password_hash import make_hash
from tests.support.children import ModuleChild

PASSWORD = "correct horse battery"
USERS = {"ann": "--admin", "bob": "--operator", "eve": ""}


def write_users(file: Path) -> list[str]:
    """Users ann (admin), bob (operator) and eve (viewer). Returns the options of `brim web`."""
    stored = make_hash(PASSWORD.encode())
    for name in USERS:
        change_user(file, name, stored)
    roles = [word for name, option in USERS.items() if option for word in (option, name)]
    return ["--users", str(file), *roles]


@contextmanager
def console(runtime_dir: Path, *words: str) -> Iterator[tuple[str, ModuleChild]]:
    """URL and process of a console that serves."""
    command = ("web", "--listen", "127.0.0.1:0", "--runtime-dir", runtime_dir, *words)
    with ModuleChild("edge", *command) as child:
        line = child.lines_until("the console is at")[-1]
        yield line.rpartition(" ")[2].rstrip("/"), child
        status, _, log = child.stop()
        assert status == 0, log
        assert "Traceback" not in log, log


class Answer:
    """Status, headers and body of an answer."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def content(self) -> Any:
        """The JSON of the body."""
        return json.loads(self.body)


class Visitor:
    """A client of the console at `url`."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url).netloc
        self.host, port = place.rsplit(":", 1)
        self.port = int(port)
        self.cookie = ""
        self.csrf = ""

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        """Answer to a request; `headers` have _ for -."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            if self.cookie and "Cookie" not in given:
                given["Cookie"] = self.cookie
            connection.request(method, path, body or None, given)
            answer = Answer(connection.getresponse())
        finally:
            connection.close()
        for header in answer.headers.get_all("Set-Cookie", []):
            self.cookie = header.partition(";")[0]
        return answer

    def get(self, name: str, **query: Any) -> Any:
        """JSON of a GET that succeeds."""
        path = f"/api/v1/{name}" + (f"?{urlencode(query)}" if query else "")
        answer = self.send("GET", path)
        assert answer.status == 200, (path, answer.status, answer.body)
        return answer.content

    def post(self, name: str, body: Any = None, method: str = "POST", **headers: str) -> Answer:
        """Answer to a change."""
        sent = {"Content-Type": "application/json", "X-CSRF-Token": self.csrf, **headers}
        return self.send(method, f"/api/v1/{name}", json.dumps(body or {}).encode(), **sent)

    def sign_in(self, user: str, password: str = PASSWORD) -> Answer:
        """Answer to a log-in."""
        self.csrf = self.get("session")["csrf"]
        answer = self.post("session", {"user": user, "password": password})
        if answer.status == 200:
            self.csrf = answer.content["csrf"]
        return answer
