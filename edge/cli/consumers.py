"""Show and change consumer groups: committed offsets, and delivery settings.

    brim consumers ls                                   every group
    brim consumers lag [GROUP]                          each partition: committed offset, end, lag, owner
    brim consumers reset GROUP --to oldest              start again; or latest, a time, an offset
    brim consumers reset GROUP --to 2026-11-21T06:00Z --ring press-0
    brim consumers set GROUP --lease 60s --tries 3      change delivery settings, also while consumers run
    brim consumers set GROUP --lease default            remove the value that `set` gave
    brim consumers set GROUP --speed 10                 replay at ten times the original speed
    brim consumers forget GROUP                         remove a group

reset and forget need a group without running consumers. A value of `set` overrides those of the consumers
and of the configuration file.

Exit status: 0 done, 2 wrong arguments, 3 no broker is reachable, 4 refused, with the reason.
"""

from __future__ import annotations

import argparse
import datetime as dt
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from edge.cli.argument_types import seconds, speed
from edge.cli.config_options import add_broker_arguments
from edge.cli.humanize import count_in_words, counted, seconds_in_words
from edge.consumers.client_socket import RequestClient
from edge.consumers.delivery_settings import LIMITS, DeliverySettings, SettingName
from edge.consumers.protocol import (
    VERSION,
    Done,
    Forget,
    GroupInfo,
    GroupList,
    Groups,
    MemberInfo,
    PlaceInfo,
    Reset,
    SetGroup,
    StartWord,
)
from edge.consumers.start_place import unix_ns
from edge.errors import EdgeError, InvalidArgument
from edge.local.curve_keys import Curve
from edge.terminal_escape import escaped

DEFAULT = "default"
OPTIONS: dict[str, tuple[SettingName, str]] = {
    "--lease": ("lease_ms", "time that a consumer has for a record, such as 60s"),
    "--tries": ("tries_max", "deliveries after which a record becomes a dead letter; 0: no limit"),
    "--backoff": ("backoff_ms", "wait before the second delivery, such as 500ms; doubled each time"),
    "--backoff-max": ("backoff_max_ms", "longest wait between two deliveries"),
    "--speed": ("speed_permille", "replay at X times the original speed, from 0.001; 0: as fast as possible"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim consumers`."""
    verbs = parser.add_subparsers(dest="what", required=True, metavar="ls | lag | reset | set | forget")
    listing = verbs.add_parser("ls", help="list groups")
    lag = verbs.add_parser("lag", help="show the lag of each partition of a group")
    lag.add_argument("group", nargs="?", default="", metavar="GROUP", help="group (default: all)")
    reset = verbs.add_parser("reset", help="change the committed offsets of a group")
    reset.add_argument("group", metavar="GROUP", help="group")
    reset.add_argument(
        "--to",
        required=True,
        metavar="WHERE",
        help="oldest, latest, an offset, or a time: 2026-11-21T06:00 (local), 2026-11-21T06:00Z (UTC)",
    )
    reset.add_argument(
        "--ring", action="append", default=[], help="only this partition; may be repeated (default: all)"
    )
    change = verbs.add_parser("set", help="change delivery settings of a group")
    change.add_argument("group", metavar="GROUP", help="group")
    for option, (name, text) in OPTIONS.items():
        help_text = f"{text} ({DEFAULT}: remove this value)"
        change.add_argument(option, dest=name, type=partial(_setting, name), metavar="VALUE", help=help_text)
    forget = verbs.add_parser("forget", help="remove a group and its offsets")
    forget.add_argument("group", metavar="GROUP", help="group")
    for verb in (listing, lag, reset, change, forget):
        verb.add_argument("--json", action="store_true", help="print JSON")
        verb.add_argument(
            "--endpoint", default="", help="endpoint of the broker (default: in the runtime directory)"
        )
        verb.add_argument(
            "--secret-key", type=Path, metavar="FILE", help="secret key, for a tcp:// --endpoint with keys"
        )
        verb.add_argument(
            "--server-key", type=Path, metavar="FILE", help="public key of the broker, with --secret-key"
        )
        add_broker_arguments(verb)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    curve = _curve(arguments.secret_key, arguments.server_key)
    with RequestClient(arguments.runtime_dir, endpoint=arguments.endpoint, curve=curve) as client:
        if (request := _request(arguments, client)) is not None:
            client.request(request, Done)
        if arguments.what == "forget":
            if not arguments.json:
                print(escaped(f"{arguments.group} is forgotten"))
            return 0
        group = getattr(arguments, "group", "")
        answer, _ = client.request(Groups(client.number(), VERSION, group), GroupList)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(answer.groups), indent=2).decode())
        return 0
    if not answer.groups:
        print("there are no groups of consumers")
    for info in answer.groups:
        for line in _lines(info, places=arguments.what != "ls"):
            print(escaped(line))
    return 0


def _curve(secret_key: Path | None, server_key: Path | None) -> Curve | None:
    """Keys of the command line. Raises InvalidArgument: one of the two files is missing."""
    if secret_key is not None and server_key is not None:
        return Curve(secret_key, server_key)
    if secret_key is not None or server_key is not None:
        missing = "--server-key" if server_key is None else "--secret-key"
        raise InvalidArgument(f"{missing} is missing", hint="give --secret-key and --server-key, or neither")
    return None


def _request(arguments: argparse.Namespace, client: RequestClient) -> Reset | SetGroup | Forget | None:
    """Request of a verb that changes a group; None: the verb changes nothing. Raises EdgeError."""
    if arguments.what == "reset":
        to, value = place_in_words(arguments.to)
        return Reset(client.number(), VERSION, arguments.group, to, value, tuple(arguments.ring))
    if arguments.what == "set":
        return _change(arguments, client.number())
    return Forget(client.number(), VERSION, arguments.group) if arguments.what == "forget" else None


def _setting(name: SettingName, text: str) -> int | str:
    """Value of an option of `set`: a number of milliseconds or tries, or DEFAULT."""
    if text == DEFAULT:
        return text
    try:
        value = int(text) if name == "tries_max" else round(_number(name, text) * 1000)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a whole number") from error
    low, high = LIMITS[name]
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is {value} (allowed for {name}: {low} to {high})")
    return value


def _number(name: SettingName, text: str) -> float:
    """Seconds, or a speed."""
    if name != "speed_permille":
        return seconds(text)
    return speed(text) if text != "0" else 0.0


def _change(arguments: argparse.Namespace, number: int) -> SetGroup:
    """Request of `set`. Raises EdgeError: it changes nothing."""
    given = {name: value for name, _ in OPTIONS.values() if (value := getattr(arguments, name)) is not None}
    if not given:
        raise EdgeError("nothing to set", hint=f"name a setting: {', '.join(OPTIONS)}")
    clear = tuple(name for name, value in given.items() if value == DEFAULT)
    values = {name: value for name, value in given.items() if value != DEFAULT}
    return SetGroup(number, VERSION, arguments.group, DeliverySettings(**values), clear)


def place_in_words(text: str) -> tuple[StartWord, int]:
    """Parse the place of --to. Raises EdgeError."""
    if text in {"oldest", "latest"}:
        return ("oldest" if text == "oldest" else "latest"), 0
    if text.isascii() and text.isdigit() and int(text) < 1 << 63:
        return "offset", int(text)
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        hint = "write oldest, latest, an offset, or a time such as 2026-11-21T06:00"
        raise EdgeError(f"invalid --to {text}", hint=hint) from error
    return "time", unix_ns(moment)


def _lines(group: GroupInfo, *, places: bool) -> Iterator[str]:
    members = f"{len(group.members)} consumer{'' if len(group.members) == 1 else 's'}"
    yield (
        f"{group.name}: {group.mode}, {members}, {counted(group.lag, 'record')} behind, "
        f"of {', '.join(group.filters)}"
    )
    if not places:
        return
    if settings := _settings_line(group):
        yield settings
    names = {member.member: member.name or member.member for member in group.members}
    yield from (_member_line(member) for member in group.members if member.priority or member.in_flight_max)
    for place in group.places:
        yield _place_line(place, names)


def _member_line(member: MemberInfo) -> str:
    limit = f" of at most {count_in_words(member.in_flight_max)}" if member.in_flight_max else ""
    return (
        f"  {member.name or member.member}: priority {member.priority}, "
        f"{count_in_words(member.in_flight)} handed out{limit}"
    )


def _settings_line(group: GroupInfo) -> str:
    """Delivery settings, with the source of each value that is not of the configuration file."""
    if not group.settings:  # of an earlier broker
        return ""
    words = {}
    for name, info in group.settings.items():
        value = _amount(name, info.value)
        words[name] = value if info.source == "broker" else f"{value} (set by {info.source})"
    replay = group.settings.get("speed_permille")
    return (
        f"  lease {words['lease_ms']}, tries {words['tries_max']}, "
        f"back-off {words['backoff_ms']} to {words['backoff_max_ms']}"
        + (f", replay at {words['speed_permille']}" if replay is not None and replay.value else "")
    )


def _amount(name: SettingName, value: int) -> str:
    if name == "tries_max":
        return str(value or "without limit")
    if name == "speed_permille":
        return f"{value / 1000:g} times the original speed"
    return f"{value} ms" if value < 1_000 else seconds_in_words(value / 1000)


def _place_line(place: PlaceInfo, names: dict[str, str]) -> str:
    above = f" and {count_in_words(place.done_above)} above" if place.done_above else ""
    under_way = f", {count_in_words(place.in_flight)} handed out" if place.in_flight else ""
    owner = f", owned by {names.get(place.owner, place.owner)}" if place.owner else ""
    age_s = max(time.time() - place.committed_ns / 1e9, 0)
    when = f", committed {seconds_in_words(age_s)} ago" if place.committed_ns else ""
    return (
        f"  {place.ring}: done below {place.floor}{above}, ends at {place.end_offset}, "
        f"{count_in_words(place.lag)} behind{under_way}{owner}{when}"
    )
