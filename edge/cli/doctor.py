"""Check the machine, the files and the network of a broker, and name the fix of each mistake.

Works with and without a running broker, and changes nothing. Without options it checks the broker of this
user. If this user has none, it checks the service of the system, with the configuration, the directories and
the rights of its user; only root may do that. It checks the same service if --config names the file of that
service. In all other cases run it as the broker's user.

Exit status: 0 all is well, 1 warnings, 2 errors.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from edge.cli import VERSION
from edge.cli.color import colored
from edge.cli.config_options import add_config_arguments, configured
from edge.cli.progress import waiting
from edge.config.directories import control_socket, default_runtime_dir, instance
from edge.config.schema import Config
from edge.doctor.findings import Finding, Severity, error, ok, warning
from edge.doctor.service import ServiceUnknown, SystemdService, installed_service, service_of
from edge.errors import BrokerUnreachable, ConfigError
from edge.terminal_escape import escaped
from ringbuf.free_memory import memory_limit_bytes

_COLORS = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.ERROR: "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim doctor`."""
    add_config_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print all findings. Returns the worst state."""
    with waiting("checking"):
        findings = list(_findings(arguments))
    worst = max(finding.state for finding in findings)
    if arguments.json:
        print(
            json.dumps(
                {"state": worst.name.lower(), "findings": [finding.as_dict() for finding in findings]},
                indent=2,
            )
        )
        return worst
    for finding in findings:
        state = colored(f"{finding.state.name.lower():<8}", _COLORS[finding.state])
        limit = f"  ({finding.limit})" if finding.limit else ""
        print(f"{state}{escaped(f'{finding.check}: {finding.value}{limit}')}")
        if finding.fix:
            print(f"        {escaped(finding.fix)}")
    return worst


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    try:
        service = _service(arguments)
    except ServiceUnknown as problem:
        service = None
        yield warning("service", f"{problem}; the directories of this user are checked", "", problem.hint)
    if service is not None:
        if not service.enter():
            fix = "run `sudo brim doctor`"
            yield error("service", f"{service.unit} runs as user {service.user}", "of this user", fix)
            return
        arguments.config = service.config
        yield ok("service", f"{service.unit}, user {service.user}")
    try:
        config = configured(arguments)
    except ConfigError as problem:
        for line in problem.problems:
            yield error(
                "configuration", line, "valid", "`brim check FILE` shows the effect of a corrected file"
            )
        config = Config()
    else:
        yield ok("configuration", str(arguments.config or "none: defaults"))
    from edge.doctor.connections import check_broker, check_ports, check_targets
    from edge.doctor.files import check_files
    from edge.doctor.machine import check_machine

    status = _status(config)
    memory_bytes = min(memory_limit_bytes(), service.memory_max_bytes if service else sys.maxsize)
    yield from check_machine(config, runs=status is not None, memory_bytes=memory_bytes)
    yield from check_files(config, runs=status is not None)
    yield from check_ports(config) if status is None else check_broker(status, VERSION)
    yield from check_targets(config)


def _service(arguments: argparse.Namespace) -> SystemdService | None:
    """The service of the system, if no option or broker of this user selects another one; otherwise None.

    Raises ServiceUnknown.
    """
    if arguments.runtime_dir is not None or arguments.state_dir is not None:
        return None
    if arguments.config is not None:
        return service_of(arguments.config)
    return None if control_socket(default_runtime_dir()).exists() else installed_service(instance())


def _status(config: Config) -> dict[str, Any] | None:
    """Report of the broker of these directories; None if none runs."""
    from edge.local.protocol import Connection, Report, Status

    with suppress(BrokerUnreachable), Connection(config.runtime_dir) as connection:
        return connection.request(Status(), Report).report
    return None
