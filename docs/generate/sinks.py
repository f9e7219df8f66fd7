"""Part of the configuration page: URLs and options of the sinks of bridges, from bridge/sinks."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.sinks import kafka_client, mqtt, object_store, registry
from docs.generate.markdown import code, prose, table
from docs.generate.source import doc_of


def sinks() -> str:
    """Sections about `to` and `options` of a bridge."""
    urls = doc_of(registry.open_sink, "open_sink").split("\n\n")[1]
    stores = ", ".join(code(f"{scheme}:") for scheme in ("file", *registry.OBJECT_STORES))
    passed = ", ".join(map(code, sorted(object_store.CLIENT_OPTIONS)))
    defaults = {name: f"Default: {code(str(value))}." for name, value in kafka_client.DEFAULTS.items()}
    formats = {f'"{name}"': text for name, text in registry.FORMATS.items()}
    fixed = ", ".join(map(code, kafka_client.FIXED))
    return "\n".join([
        "## Sinks of bridges\n", f"```\n{urls}\n```\n",
        f"### Option `format` of {stores}\n", _table("Value", formats),
        f"### Options with `format = \"parquet\"` of {stores}\n", _table("Option", registry.FILE_OPTIONS),
        "### Options of object stores\n", prose(doc_of(object_store.ObjectSink.of_url, "of_url")) + "\n",
        f"Options of the HTTP client: {passed}. All others are options of the store.\n",
        "### Options of Kafka\n", _table("Option", defaults),
        f"Not allowed: {fixed}. All other options of librdkafka are.\n",
        "### Options of MQTT\n", _table("Option", mqtt.OPTIONS),
    ])  # fmt: skip


def _table(name: str, rows: Mapping[str, str]) -> str:
    return table((name, "Meaning"), ((code(key), prose(text)) for key, text in rows.items()))
