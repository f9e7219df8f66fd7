"""Printed messages: a line each, as text, as JSON, or in a format of `brim sub -F`.

A format is text with sequences that each message replaces, as in mosquitto_sub. The docstring of
edge/cli/sub.py, which is the help of the verb, lists them. The client does not know packet
identifiers and topic aliases: %m is 0, and %A is empty. Between % and the letter may stand flags (- left, 0
zeros), a width and .MAXIMUM. On a terminal the values are escaped, and the text of the format is not.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from edge.errors import EdgeError
from edge.local.arrivals import Arrival
from edge.local.payloads import payload_fields
from edge.terminal_escape import escaped, escaped_payload

Part = Callable[[Arrival, int], bytes]  # (message, time in nanoseconds)

_VALUE = r"%(?P<flags>[-0]*)(?P<width>\d*)(?:\.(?P<most>\d+))?(?P<letter>.?)"
# The manual of Mosquitto also writes %@s for @s.
_SEQUENCE = re.compile(rf"%?@(?P<time>.?)|{_VALUE}|\\(?P<escape>.?)", re.DOTALL)
_WIDTH_MAX = 1_000
_ESCAPES = {"\\": "\\", "0": "\0", "a": "\a", "e": "\x1b", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_PROPERTIES = {"C": "content_type", "E": "message_expiry_interval_s", "F": "payload_format_indicator",
               "R": "response_topic"}  # fmt: skip
_CUT = "CIRt"  # with .MAXIMUM


def line_form(*, as_json: bool, verbose: bool, form: str | None = None) -> Callable[[Arrival], bytes]:
    """Function that formats a message as a line: escaped on a terminal, otherwise unchanged.

    `form`: format of -F. Raises EdgeError for an invalid one.
    """
    if as_json:
        return _json_line
    safe = sys.stdout.isatty()
    if form is not None:
        return message_format(form, safe=safe)

    def line(message: Arrival) -> bytes:
        payload = escaped_payload(message.payload).encode() if safe else message.payload
        if not verbose:
            return payload
        topic = escaped(message.topic) if safe else message.topic
        return topic.encode() + b" " + payload

    return line


def _json_line(message: Arrival) -> bytes:
    return json.dumps({"topic": message.topic} | payload_fields(message.payload) | message.fields).encode()


def message_format(text: str, *, safe: bool) -> Callable[[Arrival], bytes]:
    """Function that formats a message. `safe`: escape the values. Raises EdgeError for an invalid `text`."""
    parts: list[bytes | Part] = []
    end = 0
    for sequence in _SEQUENCE.finditer(text):
        parts += [_bytes(text[end : sequence.start()]), _part(sequence, safe=safe)]
        end = sequence.end()
    parts.append(_bytes(text[end:]))

    def form(message: Arrival) -> bytes:
        time_ns = message.fields.get("timestamp_ns") or time.time_ns()
        return b"".join(part if isinstance(part, bytes) else part(message, time_ns) for part in parts)

    return form


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _part(sequence: re.Match[str], *, safe: bool) -> bytes | Part:
    at, letter, escape = sequence["time"], sequence["letter"], sequence["escape"]
    if letter and (value := _VALUES.get(letter)) is not None:
        return _padded(value, sequence, safe=safe)
    if sequence[0] in {"%%", "@@"}:
        return sequence[0][:1].encode()
    if at == "N":
        return lambda _, time_ns: b"%09d" % (time_ns % 10**9)
    if at:
        return lambda _, time_ns: time.strftime(f"%{at}", time.localtime(time_ns // 10**9)).encode()
    if escape and escape in _ESCAPES:
        return _ESCAPES[escape].encode()
    raise EdgeError(
        f"-F: {sequence[0]!r} is not a sequence", hint="`brim sub --help` names them; write %%, @@ or \\\\"
    )


def _padded(value: Callable[[Arrival, int], bytes], sequence: re.Match[str], *, safe: bool) -> Part:
    letter, flags, width = sequence["letter"], sequence["flags"], int(sequence["width"] or 0)
    if width > _WIDTH_MAX:
        raise EdgeError(f"-F: width {width} is above {_WIDTH_MAX}", hint="write a smaller number")
    bytes_max = int(sequence["most"]) if sequence["most"] and letter in _CUT else None
    fill = b"0" if "0" in flags and "-" not in flags and letter in "AEFlmSXx" else b" "

    def part(message: Arrival, time_ns: int) -> bytes:
        data = value(message, time_ns)
        if bytes_max is not None:
            data = data.decode(errors="replace")[:bytes_max].encode()
        if safe:
            data = escaped_payload(data).encode()
        return data.ljust(width) if "-" in flags else data.rjust(width, fill)

    return part


def _properties(message: Arrival) -> dict[str, Any]:
    values: dict[str, Any] = message.fields.get("properties", {})
    return values


def _property(name: str) -> Part:
    return lambda message, _: str(_properties(message).get(name, "")).encode()


def _iso(time_ns: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(time_ns // 10**9))


def _json(message: Arrival, time_ns: int, payload: Any) -> bytes:
    values = message.fields
    zone = time.strftime("%z", time.localtime(time_ns // 10**9))
    stamp = f"{_iso(time_ns).removesuffix(zone)}.{time_ns // 1000 % 10**6:06d}{zone}"
    shown = {"tst": stamp, "topic": message.topic, "qos": values["qos"], "retain": int(values["retain"])}
    shown |= {"payloadlen": len(message.payload), "payload": payload}
    shown |= {"properties": _properties(message)} if _properties(message) else {}
    return json.dumps(shown).encode()


def _text_json(message: Arrival, time_ns: int) -> bytes:
    return _json(message, time_ns, message.payload.decode(errors="backslashreplace"))


def _nested_json(message: Arrival, time_ns: int) -> bytes:
    try:
        return _json(message, time_ns, json.loads(message.payload))
    except (ValueError, RecursionError) as error:
        raise EdgeError(
            f"-F %J: the payload on topic {message.topic!a} is not JSON", hint="use %j"
        ) from error


def _user_properties(message: Arrival, _time_ns: int) -> bytes:
    return " ".join(f"{key}:{value}" for key, value in _properties(message).get("user", ())).encode()


def _correlation_data(message: Arrival, _time_ns: int) -> bytes:
    return base64.b64decode(_properties(message).get("correlation_data", ""))


def _identifiers(message: Arrival, _time_ns: int) -> bytes:
    return ",".join(map(str, _properties(message).get("subscription_identifiers", ()))).encode()


_VALUES: dict[str, Part] = {
    "t": lambda message, _: message.topic.encode(),
    "p": lambda message, _: message.payload,
    "x": lambda message, _: message.payload.hex().encode(),
    "X": lambda message, _: message.payload.hex().upper().encode(),
    "l": lambda message, _: b"%d" % len(message.payload),
    "q": lambda message, _: b"%d" % message.fields["qos"],
    "r": lambda message, _: b"%d" % message.fields["retain"],
    "m": lambda message, _: b"0",  # the client does not show it
    "A": lambda message, _: b"",  # neither this
    "I": lambda _, time_ns: _iso(time_ns).encode(),
    "U": lambda _, time_ns: b"%d.%09d" % divmod(time_ns, 10**9),
    "j": _text_json,
    "J": _nested_json,
    "P": _user_properties,
    "D": _correlation_data,
    "S": _identifiers,
    **{letter: _property(name) for letter, name in _PROPERTIES.items()},
}
