"""Check a configuration file.

Reports every mistake with its line and a remedy. For a valid file: shows the effect of the settings, with the
directories of the system service if the file is its configuration. Starts nothing.

Exit status: 0 valid, 2 not valid.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from edge.auth.backend import AuthFiles
from edge.auth.errors import AuthFileError
from edge.auth.rule_warnings import rule_warnings
from edge.auth.tenant_streams import shared_stores
from edge.cli.exit_status import Exit
from edge.cli.humanize import bytes_in_words
from edge.config import loader
from edge.config.named_files import tls_places, unreadable_by_service
from edge.config.schema import Config
from edge.doctor.service import ServiceUnknown, service_of
from edge.errors import ConfigError, EdgeError, with_hint
from edge.server.memory_budget import fitted_limits, lowered_limits, misfit
from edge.streams.ring_sizes import fitted_to_memory
from edge.web.roles import UserFile
from ringbuf.free_memory import memory_limit_bytes


class ConfigVerdict(NamedTuple):
    """The result of a check: mistakes, or the effect of the settings with warnings."""

    mistakes: Sequence[str]
    effect: Sequence[str] = ()
    warnings: Sequence[str] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim check`."""
    parser.add_argument("file", type=Path, metavar="FILE", help="configuration file")
    parser.add_argument("--json", action="store_true", help="print the verdict as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Check the file. Returns 0, or 2 with every mistake on standard error."""
    verdict = _verdict_of(arguments.file)
    if arguments.json:
        print(json.dumps({"file": str(arguments.file), "valid": not verdict.mistakes, **verdict._asdict()}))
    elif verdict.mistakes:
        print("\n".join(verdict.mistakes), file=sys.stderr)
    else:
        print(f"{arguments.file}: no mistakes")
        for line in (*verdict.effect, *(f"WARNING: {text}" for text in verdict.warnings)):
            print(f"  {line}")
    return Exit.USAGE if verdict.mistakes else Exit.OK


def _verdict_of(file: Path) -> ConfigVerdict:
    service, memory_bytes = _service_notes(file)
    try:
        config = loader.load(file)
    except ConfigError as error:
        return ConfigVerdict([str(problem) for problem in error.problems])
    mistakes = [f"{file}: {text}" for find in _SECTIONS for text in find(config)]
    files = None
    try:
        files = AuthFiles.read(config.auth.password_file, config.auth.acl_file)
    except AuthFileError as error:
        mistakes += error.problems
    mistakes += _console_mistakes(config)
    if mistakes or files is None:
        return ConfigVerdict(mistakes)
    rules = rule_warnings(config, files) if files.rules is not None else ()
    shared = (f"{it.files} holds records of {it.owners}; {it.remedy}" for it in shared_stores(config))
    fitting = fitted_limits(fitted_to_memory(config, memory_bytes), memory_bytes)
    memory = [text] if (text := misfit(fitting, memory_bytes)) else []
    return ConfigVerdict(
        (),
        [*service.effect, *_summary(fitting), *_auth_summary(config, files)],
        [
            *service.warnings,
            *memory,
            *rules,
            *shared,
            *unreadable_by_service(file, config),
        ],
    )


def _service_notes(file: Path) -> tuple[ConfigVerdict, int]:
    """Select the directories of the service that runs with the file, and name it. Also returns its memory."""
    memory_bytes = memory_limit_bytes()
    try:
        service = service_of(file)
    except ServiceUnknown as error:
        text = f"{with_hint(error)}; the directories shown are those of this user"
        return ConfigVerdict((), (), [text]), memory_bytes
    if service is None:
        return ConfigVerdict(()), memory_bytes
    service.set_directories()
    effect = [f"service   {service.unit}, user {service.user}"]
    return ConfigVerdict((), effect), min(memory_bytes, service.memory_max_bytes)


def _tls_mistakes(config: Config) -> Iterator[str]:
    """Mistakes in the files themselves: missing, of different keys, or not valid today."""
    for place, tls in tls_places(config):
        from edge.transport.tls import Certificates

        try:
            mistake = Certificates(tls).problem()
        except EdgeError as error:
            yield f"{place}: {with_hint(error)}"
        else:
            if mistake:
                yield f"{place}: tls.certificate_file {tls.certificate_file}: {mistake}"


def _secret_mistakes(config: Config) -> Iterator[str]:
    """Mistakes in the file of a token, or of ZeroMQ's keys."""
    reads: list[Callable[[], object]] = []
    if config.metrics.listen and config.metrics.token_file is not None:
        from edge.observe.http_token import TokenFile

        reads.append(partial(TokenFile, config.metrics.token_file))
    uses_keys = config.zmq.enabled or (config.consumers.enabled and config.consumers_need_keys)
    if uses_keys and config.zmq.secret_key_file is not None:
        from edge.local.zmq_server_socket import key_pair

        reads.append(partial(key_pair, config.zmq.secret_key_file))
    for read in reads:
        try:
            read()
        except EdgeError as error:
            yield with_hint(error)


def _console_mistakes(config: Config) -> Sequence[str]:
    """Mistakes of the web console: no library, an unreadable file, or a role of a user who is not in it."""
    from edge.server.web_process import check_available

    web = config.web
    try:
        if web.listen:
            check_available()
        if web.users_file is not None:
            UserFile(web.users_file, web.admins, web.operators)
    except AuthFileError as error:
        return error.problems
    except EdgeError as error:
        return (with_hint(error),)
    return ()


def _log_mistakes(config: Config) -> Iterator[str]:
    """A setting whose library is not installed."""
    if not config.log.archive:
        return
    from persistence.archive import check_available
    from persistence.errors import ArchiveUnavailable

    try:
        check_available()
    except ArchiveUnavailable as error:
        yield f"log.archive: {error}"


def _bridge_mistakes(config: Config) -> Iterator[str]:
    """Mistakes that only the bridge's own code knows: a URL without a sink, a checkpoint of another edge."""
    if not config.bridge:
        return
    from bridge.drain.checkpoint import Checkpoint, mismatch_remedy
    from edge.server.bridge_settings import bridge_settings

    for bridge in config.bridge:
        try:
            settings = bridge_settings(bridge, config)
        except EdgeError as error:
            yield with_hint(error)
            continue
        known = Checkpoint.peek(settings.checkpoint_path)
        if known is not None and known.edge != config.edge_id:
            remedy = mismatch_remedy(known.edge, config.edge_id)
            yield (
                f"bridge {bridge.name}: {known.path} is the checkpoint of edge {known.edge}, not of "
                f"{config.edge_id}; {remedy}"
            )


def _plugin_mistakes(config: Config) -> Iterator[str]:
    """Mistakes that only the plug-ins know: a missing class, or invalid options."""
    if not config.auth.plugin:
        return
    try:
        from edge.auth.amqtt_compat.loader import configured
    except EdgeError as error:
        yield with_hint(error)
        return
    for plugin in config.auth.plugin:
        try:
            configured(plugin.path, plugin.options)
        except EdgeError as error:
            yield with_hint(error)


def _socket_mistakes(config: Config) -> Iterator[str]:
    """Paths of Unix sockets that no start can bind. A start creates runtime_dir and state_dir itself."""
    made = {above for own in (config.runtime_dir, config.state_dir) for above in (own, *own.parents)}
    for index, listener in enumerate(config.listener):
        path = listener.path
        if path is None:
            continue
        if not path.parent.is_dir() and path.parent not in made:
            yield f"listener[{index}].path: there is no directory {path.parent}; make it, or set another path"
        elif path.exists() and not path.is_socket():
            yield f"listener[{index}].path: {path} exists and is not a socket; set another path"


_SECTIONS = (
    _socket_mistakes,
    _tls_mistakes,
    _secret_mistakes,
    _log_mistakes,
    _bridge_mistakes,
    _plugin_mistakes,
)


def _auth_summary(config: Config, files: AuthFiles) -> Iterator[str]:
    auth = config.auth
    if files.users is not None:
        yield f"users     {len(files.users)} in {auth.password_file}"
    if files.rules is not None:
        yield f"rules     {auth.acl_file}"
    for plugin in auth.plugin:
        yield f"plug-in   {plugin.path}"


def _in_words(setting: str, value: int) -> str:
    return bytes_in_words(value) if setting.endswith("_bytes") else str(int(value))


def _summary(config: Config) -> Iterator[str]:
    from bridge.sinks.interface import shown

    yield f"edge      {config.edge_id}"
    for listener in config.listener:
        host = f"[{listener.host}]" if ":" in listener.host else listener.host
        place = listener.path or f"{host}:{listener.port}"
        yield f"listener  {place}" if listener.scheme == "tcp" else f"listener  {listener.scheme}://{place}"
    for stream in config.stream:
        size = bytes_in_words(stream.partitions * stream.ring_bytes)
        yield (
            f"stream    {stream.name}: {', '.join(stream.topics)}; partitions {stream.partitions}, {size} of "
            f"memory, when full {stream.when_full}, durability {stream.durability}"
        )
    memory = sum(stream.partitions * stream.ring_bytes for stream in config.stream)
    memory += sum(producer.ring_bytes for producer in config.producer)
    yield f"memory    {bytes_in_words(memory)} in {config.runtime_dir}"
    if lowered := lowered_limits(config):
        values = (f"{name} {_in_words(name, value)}" for name, value in lowered.items())
        yield f"limits    lowered to fit the memory: {', '.join(values)}"
    yield f"zmq       {config.zmq_endpoint if config.zmq.enabled else 'off'}"
    for producer in config.producer:
        yield f"producer  {producer.name} of {producer.stream}: {bytes_in_words(producer.ring_bytes)}"
    for bridge in config.bridge:
        yield f"bridge    {bridge.name}: {', '.join(bridge.streams) or 'all streams'} to {shown(bridge.to)}"
