"""Payload formats with a library: CBOR by cbor2, Sparkplug B by protobuf.

    cbor()        the function that decodes one CBOR payload
    sparkplug()   the same for Sparkplug B 3.0: {name of a metric, or "#alias": value}

A metric without a name, as in DATA messages of nodes that use aliases, has the name "#" and its alias. A
metric with both is present under both names. The datatype of a metric determines the sign of an integer. In a
DATA message without the datatype an integer has its value on the wire, without a sign. Metrics that are data
sets, templates or arrays are ignored.

The Sparkplug messages are described here and not generated, because only eight of their fields are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from bridge.errors import SourceOptionError
from ringbuf.extras import install_extra

# Name, number, type: of org.eclipse.tahu.protobuf.Payload.Metric. The names are not transmitted.
METRIC = (
    ("name", 1, "STRING"),
    ("alias", 2, "UINT64"),
    ("datatype", 4, "UINT32"),
    ("is_null", 7, "BOOL"),
    ("int_value", 10, "UINT32"),
    ("long_value", 11, "UINT64"),
    ("float_value", 12, "FLOAT"),
    ("double_value", 13, "DOUBLE"),
    ("boolean_value", 14, "BOOL"),
    ("string_value", 15, "STRING"),
    ("bytes_value", 16, "BYTES"),
)
VALUES = tuple(name for name, _, _ in METRIC if name.endswith("_value"))
SIGNED_BITS = {1: 8, 2: 16, 3: 32, 4: 64}  # by datatype: Int8 .. Int64


@cache
def cbor() -> Callable[[bytes], Any]:
    """The decoder of CBOR. Raises SourceOptionError: its library is missing."""
    try:
        import cbor2
    except ImportError as error:
        raise _missing("cbor2") from error
    loads: Callable[[bytes], Any] = cbor2.loads
    return loads


@cache
def sparkplug() -> Callable[[bytes], Any]:
    """The decoder of Sparkplug B. Raises SourceOptionError: its library is missing."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise _missing("protobuf") from error
    file = descriptor_pb2.FileDescriptorProto(name="brim/sparkplug.proto", package="brim", syntax="proto2")
    metric, payload = (file.message_type.add(name=name) for name in ("Metric", "Payload"))
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, number, kind in METRIC:
        metric.field.add(name=name, number=number, type=f"TYPE_{kind}", label=kinds.LABEL_OPTIONAL)
    payload.field.add(
        name="metrics", number=2, type="TYPE_MESSAGE", type_name=".brim.Metric", label=kinds.LABEL_REPEATED
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    payload_class = message_factory.GetMessageClass(pool.FindMessageTypeByName("brim.Payload"))

    def loads(data: bytes) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for metric in payload_class.FromString(data).metrics:
            value = _value(metric)
            if metric.HasField("name"):
                values[metric.name] = value
            if metric.HasField("alias"):
                values[f"#{metric.alias}"] = value
        return values

    return loads


def _value(metric: Any) -> Any:
    if metric.is_null:
        return None
    value = next((getattr(metric, name) for name in VALUES if metric.HasField(name)), None)
    bits = SIGNED_BITS.get(metric.datatype)
    if bits is not None and type(value) is int:
        value &= (1 << bits) - 1
        return value - (1 << bits) if value >> (bits - 1) else value
    return value


def _missing(package: str) -> SourceOptionError:
    return SourceOptionError(
        f"{package} is not installed here", hint=f"{install_extra('payloads')}, also on executors"
    )
