"""Page of the consumers' protocol: transport, messages with their keys and limits, states, test vectors.

Messages, keys, types, limits and defaults come from edge/consumers/protocol.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import msgspec
from msgspec import inspect

from docs.generate.commands import help_text
from docs.generate.markdown import code, prose, table
from docs.generate.source import doc_of
from edge.consumers import delivery_settings, protocol
from edge.rpc import protocol as rpc

_INTRODUCTION = """\
# Consumer protocol

The protocol of [consumer groups](../how-to/consumer-groups.md) and readers, for clients in any language. With
libzmq and a msgpack library a client is a page of code; `examples/clients/` has clients in Go and in
JavaScript for Node that use their standard libraries only.

## Transport

The broker has a ZeroMQ ROUTER socket, by default the Unix socket `RUNTIME_DIR/consumers.sock`
(`consumers.endpoint`). A client is a DEALER. A Unix socket takes no keys: its mode, 0660, guards it. Off
loopback the socket requires CURVE keys. A client without libzmq speaks
[ZMTP 3.1](https://rfc.zeromq.org/spec/37/) with the mechanism NULL:

```
  client sends                                   bytes
  greeting, then it awaits that of the broker    ff 00*8 7f | 03 01 | "NULL", zeros up to 20 | 00 | 00*31
  READY, then it awaits that of the broker       04 | size | 05 "READY" | 0b "Socket-Type" | 00000006 "DEALER"
  messages                                       frames, the last one without MORE

  frame:  byte 0      flags: 1 MORE (another frame follows), 2 LONG, 4 COMMAND
          size        1 byte; with LONG 8 bytes, big-endian
          content     so many bytes
```

The broker sends the same in return. A client ignores commands that it does not know, and answers the command
PING (`04 "PING"`, a time to live of 2 bytes, a context) with PONG (`04 "PONG"`, the context). An answer that
a client does not read for 30 s ends its connection. One request has at most 1 MiB in its first frame.

## Messages

Numbers are integers of up to 64 bits. A key that is absent has its default. A client ignores keys that it
does not know: later versions of Brim add keys. The `version` of each request is {version}.

"""

_STATES = """\
## States

A member:

```
               join -> joined                 no request for session_ms, leave,
  (unknown) ---------------------> member ----------------------------------------> (unknown)
                                     |  ^      or a join with the same `instance`
                                     +--+
                                     heartbeat each heartbeat_ms, or any other request
```

A request of a member that the broker does not know is answered by `failed` with `unknown`: the member joins
again. Records of a lost member come to others. Acknowledgements of a partition that has gone to another
member are refused with `fenced`.

A record, in one group:

| state | becomes | by |
|---|---|---|
| new | in flight | `fetched` |
| new | done | no filter of the group matches it, or the ring and the log have lost it |
| in flight | done | `ack`, `commit` |
| in flight | waiting | `nack`, the end of its lease, the end of its member |
| waiting | in flight | `fetched` with `again`, after its back-off |
| waiting | done | a late `ack` |
| in flight | dead | the same as waiting, for the try number `tries_max` |
| dead | done | its dead letter is stored |

A client that fetches:

1. `join`; keep `member`, `heartbeat_ms`.
2. `fetch` with `max_wait_ms`; the answer has the `generation` that acknowledgements name.
3. Split each frame into records, process them, `ack` the runs of their offsets. For a batch without `again`
   one run may cover the whole range of the batch.
4. Send a `heartbeat` when `heartbeat_ms` have passed without a request; with `working`, to extend the leases.
5. `leave`.

"""

_FRAMES = """\
## Frames of records

A frame has the records of its batch, ascending, in the form of the ring: [Record](formats.md#record) has the
byte table. The next record begins at the next multiple of 32 bytes. A client verifies the CRC-32C of each
record, which begins with the epoch of the batch, and that offsets ascend within the range of the batch.

## Test vectors

`tests/golden/consumers/vectors.txt` has bytes and content of each message, of frames of records, of requests
that the broker refuses as malformed, and of the transport. A client checks its codec in both directions
against it. The tests of the broker (`tests/edge/consumers/test_protocol.py`) and of the example clients check
the same file.
"""


def page() -> str:
    """Text of consumer-protocol.md."""
    overview = "\n\n".join(doc_of(protocol, "edge.consumers.protocol").split("\n\n")[1:-1])
    change = doc_of(rpc, "edge.rpc.protocol").split("\n\n")[-1]
    return "\n".join(
        [
            _INTRODUCTION.format(version=protocol.VERSION),
            help_text(overview),
            prose(change) + "\n",
            _STATES,
            "## Requests\n",
            *map(_message, get_args(protocol.Request)),
            "## Answers\n",
            *map(_message, get_args(protocol.Answer)),
            "## Parts of messages\n",
            *map(_message, _PARTS),
            _FRAMES,
        ]
    )


_PARTS = (
    protocol.BatchInfo,
    protocol.Letter,
    protocol.RingInfo,
    delivery_settings.DeliverySettings,
    delivery_settings.SettingInfo,
    protocol.GroupInfo,
    protocol.MemberInfo,
    protocol.PlaceInfo,
)


def _message(cls: Any) -> str:
    """Heading, docstring and keys of a message or a part of one."""
    tag = cls.__struct_config__.tag
    rows = list(_rows(cls))
    parts = [f"### {tag or cls.__name__}\n", help_text(doc_of(cls, cls.__name__))]
    if rows:
        parts.append(table(("Key", "Type", "Allowed", "Default"), rows))
    return "\n".join(parts)


def _rows(cls: Any) -> Iterator[tuple[str, ...]]:
    for field in msgspec.structs.fields(cls):
        if field.name in {"id", "version"} and issubclass(cls, protocol.Message):
            continue  # in each of them
        name, allowed = _kind(inspect.type_info(field.type))
        yield code(field.encode_name), name, allowed, _default(field)


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return code(msgspec.json.encode(value).decode()) if value is not None else "absent"


def _kind(kind: inspect.Type) -> tuple[str, str]:
    """Name of a type, and the allowed values."""
    match kind:
        case inspect.Metadata(type=inner):
            return _kind(inner)
        case inspect.IntType(ge=low, le=high, lt=below):
            limit = high if below is None else below - 1
            return "integer", "" if low is None else f"{low:,} to {limit:,}"
        case inspect.StrType(min_length=low, max_length=high, pattern=pattern):
            if pattern:
                return "string", code(pattern.removesuffix(r"\Z") + "$")
            return "string", "" if high is None else f"{low or 0} to {high:,} characters"
        case inspect.LiteralType(values=values):
            return "string", ", ".join(code(f'"{value}"') for value in sorted(map(str, values)))
        case inspect.BoolType():
            return "boolean", ""
        case inspect.VarTupleType(item_type=item, min_length=low, max_length=high):
            name, allowed = _kind(item)
            limits = "" if high is None else f"{low or 0} to {high:,} items"
            return f"array of {name}", "; ".join(filter(None, (limits, allowed)))
        case inspect.TupleType(item_types=items):
            names = [_kind(item) for item in items]
            inside = ", ".join(f"{name} {allowed}".rstrip() for name, allowed in names)
            return f"array [{inside}]", ""
        case inspect.DictType(value_type=value):
            return f"map of {_kind(value)[0]}", ""
        case inspect.StructType(cls=cls):
            return f"[{cls.__name__}](#{cls.__name__.lower()})", ""
        case inspect.UnionType(types=types):
            kinds = [_kind(one) for one in types if not isinstance(one, inspect.NoneType)]
            return " or ".join([*(name for name, _ in kinds), "nil"]), "; ".join(text for _, text in kinds)
    raise TypeError(f"no words for {kind}")
