"""Contexts: named brokers with user, password file and TLS, used by verbs that connect over MQTT.

Owns the file of contexts, $XDG_CONFIG_HOME/brim/contexts.json, with mode 0600. It never has a password: it
names the file that has one. Options of the command line have priority. With an address of its own (--host,
--port, --unix or --url) a command uses no context, so that a password never goes to another broker.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from edge.config.directories import home_dir
from edge.errors import EdgeError
from persistence.durable_file import replace_file
from persistence.files import OsFiles

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
HOST = "127.0.0.1"


class Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One broker. The fields have the names of the options."""

    host: str = HOST
    port: int | None = None
    username: str | None = None
    password_file: Path | None = None
    tls: bool = False
    cafile: Path | None = None
    cert: Path | None = None
    key: Path | None = None


class Contexts(msgspec.Struct, forbid_unknown_fields=True):
    """All contexts, and the name of the one in use; "": none."""

    current: str = ""
    contexts: dict[str, Context] = {}

    @classmethod
    def read(cls) -> Contexts:
        """The contexts of this user. Raises EdgeError: damaged, not readable, or others may change it."""
        file = contexts_file()
        try:
            status, data = file.stat(), file.read_bytes()
        except FileNotFoundError:
            return cls()
        except OSError as error:
            hint = "set HOME or XDG_CONFIG_HOME to a directory of this user, or name a broker by --host"
            raise EdgeError(f"{file} cannot be read: {error.strerror}", hint=hint) from error
        if status.st_mode & 0o022 or status.st_uid not in {os.geteuid(), 0}:
            raise EdgeError(f"{file}: other users may change it", hint=f"chmod 600 {file}, as its owner")
        try:
            return msgspec.json.decode(data, type=cls, dec_hook=lambda kind, text: kind(text))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise EdgeError(f"{file}: {error}", hint="correct or remove the file") from error

    def write(self) -> None:
        """Replace the file. Raises EdgeError."""
        file = contexts_file()
        data = msgspec.json.format(msgspec.json.encode(self, enc_hook=str), indent=2)
        try:
            file.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            replace_file(OsFiles(), str(file), [data, b"\n"], mode=FILE_MODE)
        except OSError as error:
            hint = "set HOME or XDG_CONFIG_HOME to a directory of this user"
            raise EdgeError(f"{file} cannot be written: {error.strerror}", hint=hint) from error

    def named(self, name: str) -> Context:
        """Return the context of that name. Raises EdgeError if no context has the name."""
        if name not in self.contexts:
            known = ", ".join(self.contexts) or "none"
            raise EdgeError(
                f"there is no context {name!r} (present: {known})", hint="`brim context add` adds one"
            )
        return self.contexts[name]


def contexts_file() -> Path:
    """File of contexts of this user."""
    home = os.environ.get("XDG_CONFIG_HOME") or home_dir() / ".config"
    return Path(home, "brim", "contexts.json")


def apply_context(arguments: argparse.Namespace) -> None:
    """Fill the options of the broker that were not given: from the context, otherwise the usual ones.

    Raises EdgeError: there is no such context.
    """
    addressed = any(getattr(arguments, key, None) is not None for key in ("host", "port", "unix", "url"))
    if arguments.context is None and addressed:
        arguments.host = arguments.host or HOST
        return
    contexts = Contexts.read()
    name = contexts.current if arguments.context is None else arguments.context
    chosen: dict[str, Any] = asdict(contexts.named(name) if name else Context())
    if chosen["tls"] and not hasattr(arguments, "tls"):
        text = f"context {name!r} uses TLS, which this command does not"
        raise EdgeError(text, hint="give --host and --port of a listener without TLS")
    for key, value in chosen.items():
        if hasattr(arguments, key) and getattr(arguments, key) in {None, False}:
            setattr(arguments, key, value)
