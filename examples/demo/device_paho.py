"""Publisher with paho-mqtt: disks, network interfaces and the process table of this machine.

paho keeps messages without an acknowledgement, and sends them again, in order, after it has reconnected. It
reconnects by itself, without a limit. So only the journal is added here: on_publish with QoS 1 means a
PUBACK.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from examples.demo.device import Device, Message, Options, Supply, explain
from examples.demo.vitals import Vitals

IN_FLIGHT_MAX = 1_000  # messages that wait for their PUBACK at a time; the others wait in paho's queue
RECONNECT_S = 1  # paho counts in whole seconds
KEEP_ALIVE_S = 30


class PahoClient:
    """Connection to the broker that survives restarts of the broker."""

    def __init__(self, client_id: str, device: Device) -> None:
        self._device = device
        # For the fields below; never held while calling paho, which has its own.
        self._lock = threading.Lock()
        self._under_way: dict[int, Message] = {}  # by packet identifier
        self._early: set[int] = set()  # acknowledged before publish() had returned their identifier
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False)
        self._client.max_inflight_messages_set(IN_FLIGHT_MAX)
        self._client.max_queued_messages_set(0)  # Device bounds what is pending
        self._client.reconnect_delay_set(RECONNECT_S, RECONNECT_S)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_publish = self._on_publish
        self._connects = 0
        self._in_flight_at_loss = 0

    def start(self, port: int) -> None:
        """Connect as soon as the broker is there; paho's thread does the rest."""
        self._client.connect_async("127.0.0.1", port, KEEP_ALIVE_S)
        self._client.loop_start()

    def publish(self, message: Message) -> None:
        """Pass the message to paho, which sends it until it is acknowledged."""
        info = self._client.publish(message.device, message.payload, qos=1)
        assert info.rc != mqtt.MQTT_ERR_QUEUE_SIZE, "Device bounds what is pending"
        with self._lock:
            if info.mid in self._early:
                self._early.remove(info.mid)
                self._device.journal.acknowledged(message.device, message.n)
            else:
                self._under_way[info.mid] = message

    def stop(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(
        self, _client: mqtt.Client, _data: Any, _flags: Any, reason: Any, _properties: Any
    ) -> None:
        if reason.is_failure:
            explain(ConnectionError(str(reason)))
            return
        self._device.journal.reconnects += self._connects > 0
        self._device.journal.resent += self._in_flight_at_loss
        self._in_flight_at_loss = 0
        self._connects += 1
        self._device.connected = True

    def _on_disconnect(
        self, _client: mqtt.Client, _data: Any, _flags: Any, reason: Any, _properties: Any
    ) -> None:
        self._device.connected = False
        with self._lock:
            self._in_flight_at_loss = min(len(self._under_way), IN_FLIGHT_MAX)
        explain(ConnectionError(str(reason)))

    def _on_publish(self, _client: mqtt.Client, _data: Any, mid: int, _reason: Any, _properties: Any) -> None:
        with self._lock:
            message = self._under_way.pop(mid, None)
            if message is None:
                self._early.add(mid)
            else:
                self._device.journal.acknowledged(message.device, message.n)


def run(options: Options, supply: Supply, client_id: str) -> None:
    """Publish the messages of `supply` until SIGTERM, then wait for all acknowledgements."""
    device = Device(options, supply)
    client = PahoClient(client_id, device)
    client.start(options.port)
    while not device.finished():
        for message in device.due():
            client.publish(message)
        time.sleep(device.delay_s())
    client.stop()
    device.close()


def main() -> None:
    """Run until SIGTERM."""
    options = Options.parse(__doc__ or "")
    vitals = Vitals(options.name, options.kinds)
    run(options, vitals.read, "demo-paho")


if __name__ == "__main__":
    main()
