"""A paho client with its thread, for tests that wait."""

import queue
from typing import Any

from edge.mqtt import Version
from tests.support.waiting import PATIENCE_S


class Paho:
    """Client of paho, connected; received messages are in `inbox`.  `more`: for paho's Client."""

    def __init__(
        self,
        port: int,
        client_id: str,
        *,
        version: Version = Version.V311,
        clean: bool = True,
        qos: int = 1,
        topic: str = "",
        properties: Any = None,
        **more: Any,
    ) -> None:
        from paho.mqtt import client as paho
        from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

        self.inbox: queue.Queue[Any] = queue.Queue()
        self.connected: queue.Queue[Any] = queue.Queue()
        self.subscribed: queue.Queue[Any] = queue.Queue()
        five = version is Version.V5
        flags: dict[str, Any] = {} if five else {"clean_session": clean}
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=MQTTProtocolVersion(version.value),
            **flags,
            **more,
        )
        self.client.on_message = lambda _client, _userdata, message: self.inbox.put(message)
        self.client.on_connect = lambda _c, _u, flags, reason, given: self.connected.put(
            (flags, reason, given)
        )
        self.client.on_subscribe = lambda _c, _u, _mid, reasons, _p: self.subscribed.put(reasons)
        start: dict[str, Any] = {"clean_start": clean, "properties": properties} if five else {}
        self.client.connect("127.0.0.1", port, **start)
        self.client.loop_start()
        answer, self.reason, self.properties = self.connected.get(timeout=PATIENCE_S)
        self.session_present: bool = answer.session_present
        if topic:
            self.client.subscribe(topic, qos)
            self.subscribed.get(timeout=PATIENCE_S)

    def message(self) -> Any:
        """The next message."""
        return self.inbox.get(timeout=PATIENCE_S)

    def next(self) -> tuple[str, bytes, int, bool]:
        """Topic, payload, QoS and retain flag of the next message."""
        message = self.message()
        return message.topic, bytes(message.payload), message.qos, message.retain

    def publish(self, topic: str, payload: bytes, qos: int = 1, retain: bool = False, **more: Any) -> None:
        """Publish, and wait until it is acknowledged."""
        self.client.publish(topic, payload, qos, retain, **more).wait_for_publish(PATIENCE_S)

    def stop(self) -> None:
        """Say goodbye, end the thread, and let the client be freed by its reference count.

        As part of a cycle its sockets could be collected before it closes them: a ResourceWarning.
        """
        self.client.disconnect()
        self.client.loop_stop()
        self.client.on_message = self.client.on_connect = self.client.on_subscribe = None
