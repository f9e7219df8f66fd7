"""Sink registry: the sink for a URL.

Owns the URL schemes and the option `format`. A sink and its library are imported when a URL names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from bridge.errors import BadName, SinkUnavailable
from bridge.sinks.interface import FileSink, RecordSink, Sink

FORMATS: Mapping[str, str] = {  # values of the option `format`
    "brim": "Drained files (default).",
    "parquet": "Parquet files; needs the extra `archive`, and with `payloads` the extra `payloads`.",
}
FILE_OPTIONS: Mapping[str, str] = {  # of all stores of files, with format = "parquet"
    "payloads": "Absolute path of a payload schema. Its fields become columns of new files. `brim reload` "
    "applies a change of the file; a bridge in another process must be restarted.",
}
OBJECT_STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "azure", "memory")


def open_sink(url: str, options: Mapping[str, str] | None = None) -> Sink:
    """The sink for `url`; nothing is contacted yet.

    file:///srv/lake              a local directory (bridge/sinks/directory.py)
    s3://bucket/prefix            and gs://, az://, abfss://, memory:///: object stores
                                  (bridge/sinks/object_store.py); `options` are those of obstore, such as
                                  region or endpoint.  For both: format = "parquet", and with it
                                  payloads = "/path/of/a/payload/schema" (bridge/sinks/parquet.py)
    kafka://host:9092/topic       Kafka (bridge/sinks/kafka.py); `options` are those of librdkafka
    mqtt://host:1883              and mqtts://: another MQTT broker (bridge/sinks/mqtt.py, with its `options`)

    Raises BadName: no sink has this scheme, or the options are wrong; SinkUnavailable: its library is
    missing.  Neither names user or password.
    """
    try:
        return _opened(url, options)
    except (BadName, SinkUnavailable) as error:
        credentials = urlsplit(url).netloc.rpartition("@")[0]
        if not credentials:
            raise
        text, hint = (message.replace(f"{credentials}@", "") for message in (str(error), error.hint))
        raise type(error)(text, hint=hint) from None


def _opened(url: str, options: Mapping[str, str] | None) -> Sink:
    scheme = urlsplit(url).scheme
    if scheme in {"file", *OBJECT_STORES}:
        return _open_files(url, scheme, dict(options or {}))
    if scheme == "kafka":
        from bridge.sinks.kafka import KafkaSink

        return KafkaSink.of_url(url, options or {})
    if scheme in {"mqtt", "mqtts"}:
        from bridge.sinks.mqtt import MqttSink

        return MqttSink.of_url(url, options or {})
    schemes = ("file", *OBJECT_STORES, "kafka", "mqtt", "mqtts")
    known = ", ".join(f"{known}://" for known in schemes)
    raise BadName(f"no sink for {url!r}", hint=f"a sink's URL begins with one of {known}")


def _open_files(url: str, scheme: str, options: dict[str, str]) -> FileSink:
    form, payloads = options.pop("format", "brim"), options.pop("payloads", "")
    if form not in FORMATS:
        raise BadName(f"{url}: invalid format {form!r}", hint='write "brim" or "parquet"')
    if payloads and form != "parquet":
        raise BadName(f"{url}: payloads needs another format", hint='write format = "parquet"')
    store: FileSink
    if scheme == "file":
        from bridge.sinks.directory import DirectorySink

        store = DirectorySink.of_url(url, options)
    else:
        from bridge.sinks.object_store import ObjectSink

        store = ObjectSink.of_url(url, options)
    if form == "brim":
        return store
    from bridge.sinks.parquet import ParquetSink

    return ParquetSink(store, payloads)


def open_file_sink(url: str, options: Mapping[str, str] | None = None) -> FileSink:
    """As open_sink(), for a store of files only. Raises BadName for others, too."""
    sink = open_sink(url, options)
    if isinstance(sink, RecordSink):
        sink.close()
        raise BadName(f"{url!r} takes records, not files", hint="name a directory or an object store")
    return sink
