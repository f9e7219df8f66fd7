"""Bridges of the configuration: the settings of each, and the state of one in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edge.config import Bridge as BridgeConfig
from edge.config import Config
from edge.errors import EdgeError

if TYPE_CHECKING:
    from bridge.settings import BridgeSettings

__all__ = ["bridge_settings", "foreign_bridge"]


def bridge_settings(bridge: BridgeConfig, config: Config) -> BridgeSettings:
    """Settings of a [[bridge]] section. Raises EdgeError: a name, URL or option is invalid."""
    from bridge.errors import BridgeError
    from bridge.settings import BridgeSettings
    from bridge.shipping import check
    from bridge.sink import open_sink

    options = {key: _text(value) for key, value in bridge.options.items()}
    try:
        sink = open_sink(bridge.to, options)
        sink.close()
        settings = BridgeSettings(
            name=bridge.name,
            edge_id=config.edge_id,
            to=bridge.to,
            runtime_dir=config.runtime_dir,
            state_dir=config.state_dir,
            log_dir=config.log_directory,
            streams=bridge.streams,
            known_streams=(
                *(stream.name for stream in config.stream),
                *(f"{producer.stream}@{producer.name}" for producer in config.producer),
            ),
            options=options,
            start=bridge.start,
            unit_bytes=bridge.unit_bytes,
            unit_records=bridge.unit_records,
            linger_ms=bridge.linger_ms,
            compress=bridge.compress,
            window=bridge.window,
            resend_max_records=bridge.resend_max_records,
            resend_max_bytes=bridge.resend_max_bytes,
            rate_bytes_s=bridge.rate_bytes_s,
            live_share=bridge.live_share,
            priorities=bridge.priorities,
            topics=bridge.topics,
            topics_not=bridge.topics_not,
            remap=bridge.remap,
            transform=bridge.transform,
            stall_s=bridge.stall_s,
            spool_bytes={
                stream.name: stream.retain_bytes + stream.hold_bytes
                for stream in config.stream
                if stream.durability != "process"
            },
            backoff_max_ms=bridge.backoff_max_ms,
        )
        check(settings, sink)
    except BridgeError as error:
        raise EdgeError(f"bridge {bridge.name}: {error}", hint=error.hint) from error
    return settings


def foreign_bridge(bridge: BridgeConfig, config: Config) -> dict[str, Any]:
    """The state that a bridge in another process reports; "stopped" if it does not answer."""
    from bridge.control import ask
    from bridge.errors import BridgeError
    from bridge.sink import shown
    from bridge.state import BridgeState

    try:
        state: dict[str, Any] = ask(config.runtime_dir, bridge.name, "state", timeout_s=0.2)
    except BridgeError as error:
        to = shown(bridge.to)
        absent = BridgeState(bridge.name, to, "stopped", last_error=str(error), remedy=error.hint)
        return absent.as_dict()
    return state


def _text(value: str | bool | float) -> str:
    """Text of an option for sinks: true and false as in TOML."""
    return str(value).lower() if isinstance(value, bool) else str(value)
