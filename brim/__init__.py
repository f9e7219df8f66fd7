"""Brim for programs: MQTT clients, subscriptions to shared memory, producers and consumer groups.

    connect()         an MQTT client: publish and subscribe, any MQTT 3.1.1 or 5 broker
    subscribe()       records of a broker on this machine, in its shared memory, without a copy
    subscribe_zmq()   the same records, copied by ZeroMQ
    producer()        a ring of this process, for data such as camera frames
    consumer()        a member of a consumer group: records are shared among members and acknowledged
    reader()          records of partitions from a place on, for programs that store their places themselves
    sql()             rows of a query on rings, log and archive of a broker on this machine
    records()         the same records as Arrow batches, pandas or polars
    lake()            drained files as a DataFrame of Spark, Parquet files by Spark's own reader
    publish()         messages for consumer groups, perhaps delayed
    Ring, Record      a ring in shared memory, and one record of it
    errors            every exception that these raise
    asyncio           the same functions and classes for asyncio, with equal names

With a broker on this machine (`brim run`):

>>> import brim
>>> with brim.subscribe("plant/#") as plant, brim.connect() as client:
...     client.publish("plant/1/temp", "21.5", qos=1)
...     for record in plant.read(timeout_s=10):
...         print(record.key.decode(), bytes(record).decode())
plant/1/temp 21.5

Importing this package loads nothing: the first use of a name loads the modules that it needs.  The package
defines nothing of its own; the names stay while the modules behind them move.
"""

from brim._lazy import lazy

TYPE_CHECKING = False  # as of typing, which takes longer to import than this package
if TYPE_CHECKING:
    from typing import Any

    from bridge.spark.lake import lake
    from brim import asyncio, errors
    from edge.client.blocking import Client, connect
    from edge.client.blocking import Subscription as MessageSubscription
    from edge.client.options import Options, Reconnect
    from edge.client.subscriptions import Message
    from edge.consumers.ack_result import AckResult
    from edge.consumers.client import Consumer, publish
    from edge.consumers.client import Consumer as consumer  # noqa: N813
    from edge.consumers.client_state import ConsumerBatch
    from edge.consumers.protocol import Letter
    from edge.consumers.reader import PartitionReader
    from edge.consumers.reader import PartitionReader as reader  # noqa: N813
    from edge.consumers.reader_state import PartitionBatch, ReaderStart
    from edge.consumers.start_place import GroupStart
    from edge.local.curve_keys import Curve
    from edge.local.producer_ring import producer
    from edge.local.shm_subscription import Place, RingBatch, Start
    from edge.local.shm_subscription import ShmSubscription as Subscription
    from edge.local.shm_subscription import ShmSubscription as subscribe  # noqa: N813
    from edge.local.zmq_frames import Header
    from edge.local.zmq_subscription import ZmqSubscription
    from edge.local.zmq_subscription import ZmqSubscription as subscribe_zmq  # noqa: N813
    from edge.mqtt import Properties, Will
    from edge.sql.records import RecordRelation, sql
    from edge.sql.records import RecordRelation as records  # noqa: N813
    from edge.sql.result import QueryResult
    from ringbuf import Record, Ring, Writer

    __version__: str

__all__ = [
    "AckResult",
    "Client",
    "Consumer",
    "ConsumerBatch",
    "Curve",
    "GroupStart",
    "Header",
    "Letter",
    "Message",
    "MessageSubscription",
    "Options",
    "PartitionBatch",
    "PartitionReader",
    "Place",
    "Properties",
    "QueryResult",
    "ReaderStart",
    "Reconnect",
    "Record",
    "RecordRelation",
    "Ring",
    "RingBatch",
    "Start",
    "Subscription",
    "Will",
    "Writer",
    "ZmqSubscription",
    "__version__",
    "asyncio",
    "connect",
    "consumer",
    "errors",
    "lake",
    "producer",
    "publish",
    "reader",
    "records",
    "sql",
    "subscribe",
    "subscribe_zmq",
]

_HOMES = {
    "bridge.spark.lake": ("lake",),
    "edge.client.blocking": ("Client", "connect", "MessageSubscription=Subscription"),
    "edge.client.options": ("Options", "Reconnect"),
    "edge.client.subscriptions": ("Message",),
    "edge.consumers.ack_result": ("AckResult",),
    "edge.consumers.client": ("Consumer", "consumer=Consumer", "publish"),
    "edge.consumers.client_state": ("ConsumerBatch",),
    "edge.consumers.protocol": ("Letter",),
    "edge.consumers.reader": ("PartitionReader", "reader=PartitionReader"),
    "edge.consumers.reader_state": ("PartitionBatch", "ReaderStart"),
    "edge.consumers.start_place": ("GroupStart",),
    "edge.local.curve_keys": ("Curve",),
    "edge.local.zmq_frames": ("Header",),
    "edge.local.producer_ring": ("producer",),
    "edge.mqtt": ("Properties", "Will"),
    "edge.sql.records": ("RecordRelation", "records=RecordRelation", "sql"),
    "edge.sql.result": ("QueryResult",),
    "edge.local.shm_subscription": (
        *("Place", "RingBatch", "Start"),
        *("Subscription=ShmSubscription", "subscribe=ShmSubscription"),
    ),
    "edge.local.zmq_subscription": ("ZmqSubscription", "subscribe_zmq=ZmqSubscription"),
    "ringbuf": ("Record", "Ring", "Writer"),
}

if not TYPE_CHECKING:  # a type checker takes the imports above, and reports a name that is not there
    _attribute = lazy(__name__, _HOMES)

    def __getattr__(name: str) -> "Any":
        from importlib import import_module

        if name in {"asyncio", "errors"}:
            return import_module(f"brim.{name}")
        if name == "__version__":
            value = import_module("edge.cli").VERSION
        else:
            value = _attribute(name)
        return globals().setdefault(name, value)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
