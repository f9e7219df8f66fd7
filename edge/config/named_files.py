"""Files that a configuration names, and the check that the user of a service can read them.

Reads attributes only. The group that reads the configuration is that of the service: its user is a member of
the group (the Debian package: group brim of /etc/brim/brim.toml).
"""

from __future__ import annotations

import grp
import stat
from collections.abc import Iterator
from pathlib import Path

from edge.config.listener import Tls
from edge.config.schema import Config


def tls_places(config: Config) -> Iterator[tuple[str, Tls]]:
    """Section and settings of each [...tls]."""
    places = [(f"listener[{index}]", listener.tls) for index, listener in enumerate(config.listener)]
    for place, tls in (*places, ("metrics", config.metrics.tls), ("web", config.web.tls)):
        if tls is not None:
            yield place, tls


def named_files(config: Config) -> Iterator[tuple[str, Path]]:
    """Setting and path of each file of users, rules, certificates, keys, tokens and payload schemas."""
    for place, tls in tls_places(config):
        for key in ("certificate_file", "key_file", "client_ca_file"):
            if (file := getattr(tls, key, None)) is not None:
                yield f"{place}.tls.{key}", file
    for key, path in (
        ("auth.password_file", config.auth.password_file),
        ("auth.acl_file", config.auth.acl_file),
        ("web.users_file", config.web.users_file),
        ("metrics.token_file", config.metrics.token_file),
        ("zmq.secret_key_file", config.zmq.secret_key_file),
    ):
        if path is not None:
            yield key, path
    for bridge in config.bridge:
        if payloads := bridge.options.get("payloads"):
            yield f"bridge.{bridge.name}.options.payloads", Path(str(payloads))


def unreadable_by_service(config_file: Path, config: Config) -> Iterator[str]:
    """Warnings: files that the group of the configuration file cannot read."""
    own = config_file.stat()
    if own.st_uid or not own.st_gid or own.st_mode & stat.S_IROTH or not own.st_mode & stat.S_IRGRP:
        return
    group = _name(own.st_gid)
    for key, file in named_files(config):
        if not file.exists():  # the check of its section reports it
            continue
        status = file.stat()
        of_group = status.st_gid == own.st_gid and status.st_mode & stat.S_IRGRP
        if not status.st_uid and not of_group and not status.st_mode & stat.S_IROTH:
            yield (
                f"{key}: the group {group}, which reads {config_file}, cannot read {file}; "
                f"chgrp {group} {file} && chmod 640 {file}"
            )


def _name(group: int) -> str:
    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)
