"""MQTT.js in a page of a real browser, by WebSocket."""

import pytest

from tests.support.browser import run_page
from tests.support.mqtt_transports import Transports, transports

ROUND = """
const options = {protocolVersion: given.version, clientId: "page", clean: true};
if (given.aliases) options.properties = {topicAliasMaximum: given.aliases};
const client = mqtt.connect(given.url, options);
const got = [];
client.on("error", (error) => done({error: String(error)}));
client.on("message", (topic, payload, packet) => {
  const user = packet.properties && packet.properties.userProperties;
  got.push([topic, payload.toString(), packet.qos, user ? user.n : null]);
  if (got.length === 30) { client.end(); done(got); }
});
client.on("connect", async () => {
  await client.subscribeAsync("t/+", {qos: given.qos});
  for (let n = 0; n < 30; n++) {
    const more = given.version === 5 ? {properties: {userProperties: {n: String(n)}}} : {};
    await client.publishAsync("t/" + n % 3, "payload " + n, {qos: n % 3, ...more});
  }
});
"""


@pytest.mark.browser
@pytest.mark.parametrize(
    ("version", "qos", "aliases"),
    [(4, 2, 0), (5, 2, 0), (5, 1, 2)],  # it forgets the topic of an alias at QoS 2 (5.16.0)
)
def test_a_page_publishes_and_subscribes_at_every_qos(version: int, qos: int, aliases: int) -> None:
    with transports() as there:
        url = f"ws://127.0.0.1:{port_of(there)}/mqtt"
        got = run_page(ROUND, {"url": url, "version": version, "qos": qos, "aliases": aliases})
    assert sorted(got, key=lambda it: int(it[1].split()[1])) == [
        [f"t/{n % 3}", f"payload {n}", min(n % 3, qos), str(n) if version == 5 else None] for n in range(30)
    ]


def port_of(there: Transports) -> int:
    """Of the WebSocket listener."""
    with there.connected("ws") as stream:
        port: int = stream.socket.getpeername()[1]
    return port
