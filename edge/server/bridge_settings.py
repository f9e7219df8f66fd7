"""Bridges of the configuration: the settings of each, and the state of one in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from edge.config.schema import Bridge as BridgeConfig
from edge.config.schema import Config
from edge.errors import EdgeError

if TYPE_CHECKING:
    from bridge.drain.settings import BridgeSettings

NOT_COPIED = {"in_broker", "options"}


def bridge_settings(bridge: BridgeConfig, config: Config) -> BridgeSettings:
    """Settings of a [[bridge]] section. Raises EdgeError: a name, URL or option is invalid."""
    from bridge.drain.sender import check
    from bridge.drain.settings import BridgeSettings
    from bridge.errors import BridgeError
    from bridge.sinks.registry import open_sink

    options = {key: _text(value) for key, value in bridge.options.items()}
    try:
        sink = open_sink(bridge.to, options)
        sink.close()
        settings = BridgeSettings(
            **copied_settings(bridge),
            edge_id=config.edge_id,
            runtime_dir=config.runtime_dir,
            state_dir=config.state_dir,
            log_dir=config.log_directory,
            known_streams=known_streams(config),
            options=options,
            spool_bytes={
                stream.name: stream.retain_bytes + stream.hold_bytes
                for stream in config.stream
                if stream.durability.is_logged
            },
        )
        check(settings, sink)
    except BridgeError as error:
        raise EdgeError(f"bridge {bridge.name}: {error}", hint=error.hint) from error
    return settings


def new_schema(settings: BridgeSettings) -> str:
    """Id of the payload schema that its file has now; "" without a schema.

    Raises EdgeError: it cannot be read, or readers could not join its columns with those of existing files.
    """
    from bridge.drain.checkpoint import Checkpoint
    from bridge.drain.sender import schema_of
    from bridge.errors import BridgeError
    from bridge.sinks.interface import Decoding
    from bridge.sinks.registry import open_sink

    try:
        sink = open_sink(settings.to, settings.options)
        sink.close()
        if isinstance(sink, Decoding) and (checkpoint := Checkpoint.peek(settings.checkpoint_path)):
            sink.evolve(checkpoint.columns)
        return schema_of(sink)[0]
    except BridgeError as error:
        raise EdgeError(f"bridge {settings.name}: {error}", hint=error.hint) from error


def known_streams(config: Config) -> tuple[str, ...]:
    """Streams, and producers as "stream@producer"."""
    return (
        *(stream.name for stream in config.stream),
        *(f"{producer.stream}@{producer.name}" for producer in config.producer),
    )


def copied_settings(bridge: BridgeConfig) -> dict[str, Any]:
    """The keys of [[bridge]] that are BridgeSettings of the same name and type."""
    return {key: value for key, value in msgspec.structs.asdict(bridge).items() if key not in NOT_COPIED}


def separate_bridge(bridge: BridgeConfig, config: Config) -> dict[str, Any]:
    """The state that a bridge in another process reports; "stopped" if it does not answer."""
    from bridge.drain.control_socket import state_of
    from bridge.drain.status import BridgeState
    from bridge.errors import BridgeError
    from bridge.sinks.interface import shown

    try:
        return state_of(config.runtime_dir, bridge.name, timeout_s=0.2)
    except BridgeError as error:
        to = shown(bridge.to)
        absent = BridgeState(bridge.name, to, "stopped", last_error=str(error), remedy=error.hint)
        return absent.as_dict()


def _text(value: str | bool | float) -> str:
    """Text of an option for sinks: true and false as in TOML."""
    return str(value).lower() if isinstance(value, bool) else str(value)
