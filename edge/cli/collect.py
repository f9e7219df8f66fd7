"""Take drained files from bridges over ZeroMQ: the far side of `to = "zmq://host:5571"`.

    brim collect --to file:///srv/lake                                  bridges of this machine
    brim collect --to file:///srv/lake --listen tcp://0.0.0.0:5571 --key collector.key

With --key all is encrypted (CURVE); the file is made if it is not there, for this user's eyes alone, and the
key that bridges want as server_key is said.  --clients names a directory with the public keys of the bridges
that may come; without it, any that has the server_key may.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
from pathlib import Path

from edge import logs
from edge.cli.notify import notify
from edge.errors import EdgeError
from edge.logs import pairs

__all__ = ["add_arguments", "run"]

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `brim collect` takes."""
    parser.add_argument("--to", required=True, metavar="URL", help="a directory or an object store")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of that store")
    parser.add_argument("--listen", default="tcp://127.0.0.1:5571", metavar="ENDPOINT", help="%(default)s")
    parser.add_argument("--key", type=Path, metavar="FILE", help="encrypt; made if it is not there")
    parser.add_argument("--clients", type=Path, metavar="DIR", help="public keys of bridges that may come")
    parser.add_argument("--log-level", choices=logs.LEVELS, default="info")
    parser.add_argument("--log-format", choices=logs.FORMATS, default="text")


def run(arguments: argparse.Namespace) -> int:
    """The exit status."""
    from bridge.collecting import is_private
    from bridge.collector import Collector
    from bridge.sink import open_unit_sink

    logs.configure(arguments.log_level, arguments.log_format)
    if arguments.key is None and not is_private(arguments.listen):
        raise EdgeError(f"{arguments.listen} is open to others", hint="encrypt what goes there: --key FILE")
    if arguments.clients is not None and arguments.key is None:
        raise EdgeError("--clients is of use with --key alone")
    keys = _keys(arguments.key) if arguments.key else None
    options = dict(it.partition("=")[::2] for it in arguments.option)
    store = open_unit_sink(arguments.to, options)
    try:
        clients = str(arguments.clients) if arguments.clients else ""
        collector = Collector(store, arguments.listen, keys=keys, clients=clients)
        stopping = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: stopping.set())
        serving = threading.Thread(target=collector.run, name="brim-collect")
        serving.start()
        facts = pairs(endpoint=collector.endpoint, to=store.url, server_key=keys[0].decode() if keys else "")
        log.info("collecting %s", facts)
        notify("READY=1")
        stopping.wait()
        notify("STOPPING=1")
        collector.stop()
        serving.join()
        log.info("collected %s", pairs(files=collector.stored, bytes=collector.stored_bytes))
    finally:
        store.close()
    return 0


def _keys(path: Path) -> tuple[bytes, bytes]:
    """(public, secret) of `path`, which is made if it is not there."""
    import zmq
    import zmq.auth

    if not path.exists():
        public, secret = zmq.curve_keypair()
        halves = (f'    public-key = "{public.decode()}"', f'    secret-key = "{secret.decode()}"')
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write("\n".join(("metadata", "curve", *halves, "")))
    try:
        found, private = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise EdgeError(f"{path}: {error}", hint="remove it, and a new one is made") from error
    if private is None:
        raise EdgeError(f"{path}: has no secret key", hint="name the file that ends in .key_secret")
    return found, private
