"""A subscriber outside the broker whose session is kept, with a ledger: what is stored for it arrives."""

import struct

from tests.support.outside_client import Lost, OutsideClient, number_of, packet, string

PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK = 0x40, 0x50, 0x62, 0x70, 0x90


class OutsideSubscriber(OutsideClient):
    """Takes what is published to these topics, QoS 2: each message as it was published."""

    def __init__(self, client_id: str, topics: list[str]) -> None:
        super().__init__(client_id, kept=True)
        self.topics = topics
        self.subscribed = False
        self.arrived: dict[str, set[int]] = {topic: set() for topic in topics}  # since forget()
        self._last = dict.fromkeys(topics, -1)  # the highest number
        self._taken: set[int] = set()  # identifiers of QoS 2 that wait for PUBREL

    def forget(self, topic: str) -> None:
        """Drop messages of a topic that the test has checked."""
        self.arrived[topic].clear()

    def _connected(self, *, present: bool) -> None:
        if not present:
            filters = b"".join(string(topic.encode()) + b"\x02" for topic in self.topics)
            self._out += packet(0x82, b"\0\1" + filters)

    def _take(self, first: int, body: bytes) -> None:
        if first & 0xF0 == 0x30:
            self._take_message(first, body)
        elif first == PUBREL:
            self._taken.discard(body[0] << 8 | body[1])
            self._out += packet(PUBCOMP, body)
        else:
            assert first == SUBACK, first
            assert set(body[2:]) == {2}, body
            self.subscribed = True

    def _take_message(self, first: int, body: bytes) -> None:
        behind = 2 + (body[0] << 8 | body[1])
        topic = body[2:behind].decode()
        (identifier,) = struct.unpack_from(">H", body, behind)
        exactly = first & 6 == 4
        self._out += packet(PUBREC if exactly else PUBACK, body[behind : behind + 2])
        if exactly and identifier in self._taken:
            return  # Said again.
        if exactly:
            self._taken.add(identifier)
        number = number_of(body[behind + 2 :])
        if number in self.arrived[topic] or number <= self._last[topic]:
            if exactly or not first & 8:
                raise Lost(f"{self.client_id}: {topic} {number} arrived twice or out of order")
            return
        self._last[topic] = number
        self.arrived[topic].add(number)
