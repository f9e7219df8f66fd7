"""Checks of files: directories, leftovers of killed brokers, certificates and their keys."""

from __future__ import annotations

import os
import shutil
import ssl
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from edge.auth.acl_file import read_rules
from edge.auth.errors import AuthFileError
from edge.auth.password_file import read_users
from edge.auth.tenant_streams import shared_stores
from edge.config.directories import file_system, is_read_only
from edge.config.listener import Tls
from edge.config.named_files import tls_places
from edge.config.schema import Config
from edge.doctor.findings import Finding, error, nearest, ok, warning
from edge.errors import EdgeError
from edge.server.leftovers import leftovers
from edge.transport.tls import Certificates
from edge.user_names import user_name
from persistence.durable_file import lacks_inodes

IN_MEMORY = {"tmpfs", "ramfs"}
REMOTE = {"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"}
DAYS_LEFT = 30
DAY_S = 86_400


def check_files(config: Config, *, runs: bool) -> Iterator[Finding]:
    """All checks of this file. `runs`: a broker uses the directories."""
    logged = any(stream.durability.is_logged for stream in config.stream)
    yield _directory("runtime_dir", config.runtime_dir, in_memory=True)
    yield _directory("state_dir", config.state_dir, in_memory=False)
    if logged:
        yield _directory("log.directory", config.log_directory, in_memory=False)
        yield _free_space(config)
    left = [] if runs else list(leftovers(config))
    if left:
        names = ", ".join(map(str, left[:5]))
        yield warning(
            "leftovers", f"{len(left)}: {names}", "none", "the next start removes them, or remove them"
        )
    else:
        yield ok("leftovers", "none")
    for place, tls in tls_places(config):
        yield from _certificate(place, tls)
    yield from _users_and_rules(config)
    for shared in shared_stores(config):
        value = f"{shared.files} holds records of {shared.owners}"
        yield warning("tenants apart", value, "files of one tenant each", shared.remedy)


def _directory(key: str, path: Path, *, in_memory: bool) -> Finding:
    try:
        return _state_of(key, path, in_memory=in_memory)
    except PermissionError:
        user = user_name()
        return error(
            key, f"{path} is hidden from user {user}", "readable", "run as the broker's user, or root"
        )


def _state_of(key: str, path: Path, *, in_memory: bool) -> Finding:
    if not path.exists():
        above = nearest(path.parent)
        if os.access(above, os.W_OK | os.X_OK):
            return ok(key, f"{path} does not exist yet", "the broker creates it")
        return error(
            key, f"{path} cannot be created", "writable", f"mkdir {path}, and give it to the broker's user"
        )
    status, user = path.stat(), os.geteuid()
    value = f"{path}, mode {stat.S_IMODE(status.st_mode):o}, user {user_name(status.st_uid)}"
    if not stat.S_ISDIR(status.st_mode):
        return error(key, f"{path} is not a directory", "a directory", f"remove it, or set {key}")
    if status.st_uid not in {user, 0}:
        name = user_name(user)
        fix = f"chown {name} {path}, or run as user {user_name(status.st_uid)}"
        return error(key, value, f"of user {name}", fix)
    if status.st_mode & stat.S_IWOTH:
        return error(key, value, "not writable by all users", f"chmod o-w {path}")
    if is_read_only(path):
        return error(
            key, f"{path}, of a read-only file system", "writable", "mount it for writing; see `dmesg`"
        )
    if not os.access(path, os.W_OK | os.X_OK):
        return error(key, value, f"writable by user {user}", f"chmod u+wx {path}")
    kind = file_system(path)
    value += f", {kind or 'unknown file system'}"
    if in_memory and kind and kind not in IN_MEMORY:
        return warning(
            key, value, "in memory (tmpfs)", "set runtime_dir to a directory below /dev/shm or /run"
        )
    if not in_memory and kind in IN_MEMORY:
        return warning(key, value, "on a disk: a power cut empties it", f"set {key} to a directory on a disk")
    if kind in REMOTE:
        return warning(key, value, "a local disk", f"set {key} to a directory on a local disk")
    return ok(key, value)


def _free_space(config: Config) -> Finding:
    place = nearest(config.log_directory)
    if lacks_inodes(place):
        fix = "remove files there, or use a file system with more inodes: `df -i`"
        return error("disk space", f"the disk of {place} has no free inodes", "some", fix)
    usage = shutil.disk_usage(place)
    used = 100 - usage.free * 100 // usage.total
    value, limit = f"{used} % of the disk of {place} is used", f"below {config.log.disk_warn_percent} %"
    fix = "free space there, or lower log.retain_bytes"
    if used >= config.log.disk_read_only_percent:
        return error("disk space", value, limit, fix)
    return (
        warning("disk space", value, limit, fix)
        if used >= config.log.disk_warn_percent
        else ok("disk space", value, limit)
    )


def _users_and_rules(config: Config) -> Iterator[Finding]:
    """Files of users and access rules: readable for this user, and valid."""
    for key, file, read in (
        ("auth.password_file", config.auth.password_file, read_users),
        ("auth.acl_file", config.auth.acl_file, read_rules),
        ("web.users_file", config.web.users_file, read_users),
    ):
        if file is None:
            continue
        try:
            read(file)
        except AuthFileError as problem:
            for line in problem.problems:
                yield error(key, line, f"readable by user {user_name()}, and valid", f"correct {file}")
        else:
            yield ok(key, str(file))


def _certificate(place: str, tls: Tls) -> Iterator[Finding]:
    check = f"certificate of {place}"
    try:
        refusal = Certificates(tls).problem()
    except EdgeError as problem:
        yield error(check, str(problem), "readable, in PEM, with its key", problem.hint)
        return
    if refusal:
        yield error(
            check,
            f"{tls.certificate_file}: {refusal}",
            "accepted by clients",
            "get a new certificate, then `kill -HUP`",
        )
    else:
        yield _expiry(check, tls.certificate_file)
    mode = stat.S_IMODE(tls.key_file.stat().st_mode)
    if mode & 0o007:
        yield error(
            f"key of {place}",
            f"{tls.key_file}, mode {mode:o}",
            "hidden from other users",
            f"chmod o= {tls.key_file}",
        )
    else:
        yield ok(f"key of {place}", f"{tls.key_file}, mode {mode:o}")


def _expiry(check: str, file: Path) -> Finding:
    try:
        end = ssl._ssl._test_decode_cert(str(file))["notAfter"]  # type: ignore[attr-defined]
    except (ssl.SSLError, OSError, AttributeError):
        return ok(check, str(file))
    days = int((ssl.cert_time_to_seconds(end) - time.time()) // DAY_S)
    value = f"{file}, valid for {days} days"
    if days < DAYS_LEFT:
        return warning(check, value, f"{DAYS_LEFT} days", "renew it, then send SIGHUP to the broker")
    return ok(check, value, f"{DAYS_LEFT} days")
