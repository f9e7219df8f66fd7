"""Payloads for people and for JSON, and MQTT 5 properties of records."""

from __future__ import annotations

import base64
from typing import Any

from msgspec.structs import asdict

from edge.mqtt import Properties, ProtocolError, Version
from edge.mqtt.primitives import Body
from edge.mqtt.properties import NO_PROPERTIES, In, decode_properties
from edge.terminal_escape import escaped_payload

SHORT_BYTES = 48


def payload_fields(payload: bytes) -> dict[str, Any]:
    """Field `payload` of a JSON object: text, or base64 with the field `encoding`."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(payload).decode(), "encoding": "base64"}


def short_payload(payload: bytes) -> str:
    """The beginning of a payload, safe to print."""
    more = "..." if len(payload) > SHORT_BYTES else ""
    return escaped_payload(payload[:SHORT_BYTES]) + more


def properties_of(data: bytes) -> Properties:
    """Properties of a record. Raises ProtocolError."""
    return decode_properties(Body(data, Version.V5), In.PUBLISH) if data else NO_PROPERTIES


def record_property_fields(data: bytes) -> dict[str, Any]:
    """As property_fields(), of a record, which a local producer may have written with invalid properties."""
    try:
        return property_fields(properties_of(data))
    except ProtocolError:
        return {"invalid_properties": base64.b64encode(data).decode()}


def property_fields(properties: Properties) -> dict[str, Any]:
    """Properties of an MQTT 5 message, by name; absent ones are left out."""
    if properties == NO_PROPERTIES:
        return {}
    values = asdict(properties)
    data = values["correlation_data"]
    values["correlation_data"] = data if data is None else base64.b64encode(data).decode()
    return {"properties": {name: value for name, value in values.items() if value not in {None, ()}}}
