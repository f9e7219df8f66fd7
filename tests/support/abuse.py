"""Hostile and broken clients: each a function of a port and a size.

Each returns when it has seen how the broker took it, with what it saw, and leaves no socket open.  Sizes are
for a test; benchmarks/abuse.py runs the same with those of a real attack.  The sources of the list are the
security advisories of other brokers.
"""

import resource
import select
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from typing import Any

from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    Properties,
    Publish,
    Subscribe,
    Subscription,
    Unsubscribe,
    Version,
    Will,
    encode,
)
from edge.mqtt.primitives import encode_variable_integer

PATIENCE_S = 30.0
V5 = Version.V5
CONNACK_BYTES_MAX = 1 << 12
CROWD_FILES = 16_384
SENDING_S = 20.0  # for a crowd that the broker reads slowly


def plain(port: int) -> socket.socket:
    """A connection that has said nothing."""
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def packed(packets: Iterable[Packet], version: Version = Version.V311) -> bytes:
    """Packets as bytes."""
    return b"".join(encode(packet, version) for packet in packets)


def connected(port: int, client_id: str, version: Version = Version.V311, **fields: Any) -> socket.socket:
    """A connection whose CONNECT was answered."""
    client = plain(port)
    client.sendall(encode(Connect(client_id, version=version, keep_alive_s=0, **fields), version))
    assert client.recv(CONNACK_BYTES_MAX)[:1] == b"\x20"
    return client


def is_closed(client: socket.socket) -> bool:
    """True if the broker closes the connection, sooner or later; its earlier output is read."""
    try:
        while client.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def poured(client: socket.socket, data: bytes) -> int:
    """Number of bytes that the broker accepts before it closes the connection; answers are not read."""
    sent = 0
    with suppress(OSError):
        while sent < len(data):
            sent += client.send(data[sent : sent + (1 << 16)])
    return sent


def answered(client: socket.socket) -> bool:
    """True if a PINGREQ is still answered; other answers are read and dropped."""
    tail = b""
    with suppress(OSError):
        client.sendall(encode(PingReq()))
        while more := client.recv(1 << 16):
            if b"\xd0\x00" in tail + more:
                return True
            tail = more[-1:]
    return False


# ---- before CONNECT ----


def silent_connections(port: int, size: int) -> dict[str, int]:
    """Connect and say nothing."""
    with ExitStack() as down:
        clients = [down.enter_context(plain(port)) for _ in range(size)]
        return {"opened": size, "closed": sum(map(is_closed, clients))}


def trickled_connect(port: int, size: int) -> dict[str, int]:
    """A CONNECT a byte at a time, never whole: activity must not buy time."""
    with ExitStack() as down:
        clients = [down.enter_context(plain(port)) for _ in range(size)]
        open_clients = set(clients)
        data = encode(Connect("x" * 200))
        for byte in data[:-1]:
            for client in list(open_clients):
                with suppress(OSError):
                    client.send(bytes((byte,)))
            readable, _, _ = select.select(list(open_clients), [], [], 0.05)
            open_clients -= {client for client in readable if is_closed(client)}
            if not open_clients:
                break
        return {"opened": size, "closed": size - len(open_clients)}


def huge_claims(port: int, size: int) -> dict[str, int]:
    """A CONNECT that says it has 256 MB, and some of them."""
    closed = 0
    for _ in range(size):
        with plain(port) as client:
            poured(client, b"\x10" + encode_variable_integer(268_435_455) + bytes(1 << 16))
            closed += is_closed(client)
    return {"opened": size, "closed": closed}


def garbage(port: int, size: int) -> dict[str, int]:
    """Bytes that are no MQTT, before CONNECT and after."""
    closed = 0
    for n in range(size):
        with plain(port) if n % 2 else connected(port, "garbage") as client:
            poured(client, bytes((n * 7 + i * i) & 0xFF | 0x0F for i in range(2_000)))
            with suppress(OSError):
                client.shutdown(socket.SHUT_WR)  # else it may be the first half of something
            closed += is_closed(client)
    return {"opened": size, "closed": closed}


# ---- sizes ----


def huge_publish(port: int, size: int) -> dict[str, int]:
    """A PUBLISH of `size` MB; how much of it was taken."""
    taken = 0
    with connected(port, "huge") as client:
        head = b"\x30" + encode_variable_integer(size << 20) + b"\0\1t"
        taken = poured(client, head + bytes((size << 20) - 3))
        return {"closed": is_closed(client), "taken_kib": taken >> 10}


def many_subscriptions(port: int, size: int) -> dict[str, int]:
    """`size` filters of one client, wildcards and all."""
    with connected(port, "greedy") as client:
        granted = 0
        for n in range(size):
            client.sendall(encode(Subscribe(n % 65535 + 1, (Subscription(f"greedy/+/{n}/#", 1),))))
            granted += client.recv(5)[4] < 0x80
        return {"asked": size, "granted": granted, "alive": answered(client)}


def deep_topic(port: int, size: int) -> dict[str, int]:
    """A topic of `size` levels, published and subscribed to."""
    topic, closed = "/" * (size - 1), 0
    for packet in (Publish(topic, b"x"), Subscribe(1, (Subscription(topic + "/#"),))):
        with connected(port, "deep") as client:
            client.sendall(encode(packet))
            if isinstance(packet, Publish):
                closed += is_closed(client)
            else:
                closed += client.recv(5)[4] == 0x80
    return {"refused": closed}


def many_topics(port: int, size: int) -> dict[str, int]:
    """A message to each of `size` topics without a subscriber."""
    with connected(port, "topics") as client:
        for start in range(0, size, 1_000):
            client.sendall(packed(Publish(f"topics/{n}/x", b"") for n in range(start, start + 1_000)))
        return {"published": size, "alive": answered(client)}


def many_retained(port: int, size: int) -> dict[str, int]:
    """`size` retained messages of a kilobyte."""
    with connected(port, "hoarder") as client:
        for start in range(0, size, 500):
            client.sendall(
                packed(Publish(f"r/{n}", bytes(1_000), retain=True) for n in range(start, start + 500))
            )
        return {"published": size, "alive": answered(client)}


def retained_topics(port: int, size: int) -> dict[str, int]:
    """A retained message of a byte on each of `size` topics: beyond the quota it is delivered only."""
    with connected(port, "collector") as client:
        for start in range(0, size, 500):
            client.sendall(packed(Publish(f"r/{n}", b"x", retain=True) for n in range(start, start + 500)))
        return {"published": size, "alive": answered(client)}


def forget_retained(port: int, size: int) -> None:
    """Undo many_retained() and retained_topics()."""
    with connected(port, "tidy") as client:
        for start in range(0, size, 1_000):
            client.sendall(packed(Publish(f"r/{n}", b"", retain=True) for n in range(start, start + 1_000)))
        assert answered(client)


def many_sessions(port: int, size: int) -> dict[str, int]:
    """`size` client identifiers, each with a session and a subscription that are to be kept."""
    filters = encode(Subscribe(1, (Subscription("sessions/+", 1),)))
    accepted = 0
    for n in range(size):
        with plain(port) as client:
            client.sendall(encode(Connect(f"session-{n}", clean_start=False)) + filters)
            accepted += client.recv(4)[3:4] == b"\0" and client.recv(5)[:1] == b"\x90"
    return {"opened": size, "accepted": accepted}


def forget_sessions(port: int, size: int) -> None:
    """Undo many_sessions()."""
    for n in range(size):
        with plain(port) as client:
            client.sendall(encode(Connect(f"session-{n}")))
            if client.recv(4)[3:4] != b"\0":
                return


# ---- reading and acknowledging, or not ----


def never_reads(port: int, size: int) -> dict[str, int]:
    """Subscribes, and reads nothing of `size` MB."""
    with connected(port, "deaf") as deaf, connected(port, "loud") as loud:
        deaf.sendall(encode(Subscribe(1, (Subscription("deaf", 0),))))
        assert deaf.recv(5)
        block = packed(Publish("deaf", bytes(1_000)) for _ in range(1_000))
        for _ in range(size):
            loud.sendall(block)
        return {"published_mb": size, "alive": answered(loud)}


def never_acknowledges(port: int, size: int) -> dict[str, int]:
    """Subscribes with QoS 1, and acknowledges nothing of `size` thousand messages."""
    with connected(port, "mute") as mute, connected(port, "talker") as talker:
        mute.sendall(encode(Subscribe(1, (Subscription("mute", 1),))))
        assert mute.recv(5)
        for start in range(size):
            talker.sendall(
                packed(Publish("mute", b"x", 1, packet_id=start * 7 % 60_000 + 1) for _ in range(1))
            )
            talker.sendall(packed(Publish("mute", b"x" * 20) for _ in range(999)))
        return {"published": size * 1_000, "alive": answered(talker)}


def never_releases(port: int, size: int) -> dict[str, int]:
    """QoS 2 without PUBREL, in both versions: MQTT 5 has told its Receive Maximum and may close."""
    closed = 0
    for version in (Version.V311, V5):
        with connected(port, "held", version) as client:
            for n in range(size):
                try:
                    client.sendall(encode(Publish("held", bytes(200), 2, packet_id=n % 65535 + 1), version))
                except OSError:
                    break
                while select.select([client], [], [], 0)[0]:
                    if not client.recv(1 << 16):
                        break
            closed += not answered(client)
    return {"published": size, "closed": closed}


# ---- again and again ----


def take_overs(port: int, size: int) -> dict[str, int]:
    """The same client identifier, `size` times at once."""
    with ExitStack() as down:
        clients = [down.enter_context(connected(port, "same")) for _ in range(size)]
        return {"opened": size, "closed": sum(map(is_closed, clients[:-1])), "alive": answered(clients[-1])}


def connect_storm(port: int, size: int) -> dict[str, int]:
    """Connects and goes, without a word, with a will and a session that is to be kept."""
    for n in range(size):
        fields = {"clean_start": True, "properties": Properties(session_expiry_interval_s=0)}
        connected(port, f"storm-{n % 100}", V5, **fields).close()
    return {"opened": size}


def subscription_churn(port: int, size: int) -> dict[str, int]:
    """Subscribes and unsubscribes, with ever new filters, identifiers and shared groups."""
    with connected(port, "churn", V5) as client:
        for n in range(size):
            filters = (f"churn/{n}/+", f"$share/g{n}/churn/#")
            for number, topic_filter in enumerate(filters):
                given = Properties(subscription_identifiers=(n % 268_435_455 + 1,))
                ask = Subscribe(number + 1, (Subscription(topic_filter, 1),), given)
                client.sendall(encode(ask, V5))
            client.sendall(encode(Publish("churn/x", b"x"), V5))
            client.sendall(encode(Unsubscribe(3, filters), V5))
            if n % 50 == 49:
                assert answered(client)
        return {"rounds": size, "alive": answered(client)}


def heavy_properties(port: int, size: int) -> dict[str, int]:
    """Messages that are all user properties."""
    given = Properties(user=tuple(("k" * 100, "v" * 100) for _ in range(200)))
    data = encode(Publish("props", b"", properties=given), V5)
    with connected(port, "props", V5) as client:
        for _ in range(size):
            client.sendall(data)
        return {"published": size, "alive": answered(client)}


# ---- long control packets ----


def refused(port: int, packet: bytes, *, before_connect: bool = False) -> bool:
    """True if the broker ends the connection of the MQTT 5 client that sends `packet`."""
    with plain(port) if before_connect else connected(port, "long", V5) as client:
        poured(client, packet)
        return is_closed(client)


def user_properties(length: int) -> bytes:
    """A property set of about `length` bytes, of the shortest user properties."""
    data = b"\x26\0\0\0\0" * (length // 5)
    return encode_variable_integer(len(data), V5) + data


def packet_of(first: int, body: bytes) -> bytes:
    """With its fixed header."""
    return bytes((first,)) + encode_variable_integer(len(body), V5) + body


def connect_properties(port: int, size: int) -> dict[str, int]:
    """`size` CONNECT packets of 380 KB of user properties."""
    data = packet_of(0x10, b"\0\4MQTT\5\2\0\0" + user_properties(380_000) + b"\0\1c")
    return {"sent": size, "closed": sum(refused(port, data, before_connect=True) for _ in range(size))}


def subscribe_properties(port: int, size: int) -> dict[str, int]:
    """`size` each of SUBSCRIBE, UNSUBSCRIBE and DISCONNECT, with 1 MB of user properties."""
    user = user_properties(1_000_000)
    packets = (b"\0\1" + user + b"\0\1a\0", b"\0\1" + user + b"\0\1a", b"\0" + user)
    data = [packet_of(first, body) for first, body in zip((0x82, 0xA2, 0xE0), packets, strict=True)]
    return {"sent": 3 * size, "closed": sum(refused(port, it) for it in data * size)}


def four_mb_of_filters(port: int, size: int) -> dict[str, int]:
    """`size` times a SUBSCRIBE with 4 MB of one filter; and as often 1,000 long filters, in and out."""
    data = packet_of(0x82, b"\0\1\0" + b"\0\4abcd\0" * (4_000_000 // 7))
    closed = sum(refused(port, data) for _ in range(size))
    names = tuple(f"{n:04}/+/" + "x" * 200 for n in range(1_000))
    with connected(port, "filters", V5, properties=Properties(session_expiry_interval_s=60)) as client:
        for _ in range(size):
            for packet in (Subscribe(1, tuple(map(Subscription, names))), Unsubscribe(2, names)):
                client.sendall(encode(packet, V5))
        return {"sent": size, "closed": closed, "alive": answered(client)}


def filter_bomb(port: int, size: int) -> dict[str, int]:
    """Every filter of 12 levels in which + may stand for a level, up to the client's limit; then `size` new
    topics that all of them match; and a filter of 13 + that matches all of these, in and out.
    """
    with connected(port, "bomb") as bomb, connected(port, "fuse") as fuse:
        names = ["bomb/" + "/".join("+x"[n >> bit & 1] for bit in range(12)) for n in range(4_096)]
        for start in range(0, len(names), 1_000):
            part = tuple(Subscription(name) for name in names[start : start + 1_000])
            bomb.sendall(encode(Subscribe(1, part)))
        assert answered(bomb)
        plus = "/".join("+" * 13)
        for n in range(size):
            fuse.sendall(encode(Publish(f"bomb/{'x/' * 11}x{n}", b"")))
        assert answered(fuse)
        bomb.sendall(encode(Subscribe(1, (Subscription(plus),))) + encode(Unsubscribe(2, (plus,))))
        return {"published": size, "alive": answered(fuse) and answered(bomb)}


# ---- crowds ----


def many_files() -> None:
    """Let this process have a socket for each client of a crowd."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, CROWD_FILES)), hard))


def crowd(down: ExitStack, port: int, size: int, then: bytes = b"", **fields: Any) -> list[socket.socket]:
    """`size` connections from one address, as fast as they can be made; `then` follows each CONNECT."""
    many_files()
    clients = []
    for n in range(size):
        client = down.enter_context(plain(port))
        with suppress(OSError):
            client.sendall(encode(Connect(f"crowd-{n}", keep_alive_s=0, **fields)) + then)
        clients.append(client)
    return clients


def welcomed(clients: Iterable[socket.socket]) -> int:
    """Clients that CONNACK lets in."""
    count = 0
    for client in clients:
        with suppress(OSError):
            count += client.recv(4) == encode(ConnAck(False))
    return count


def connection_crowd(port: int, size: int) -> dict[str, int]:
    """`size` connections from one address, which end all at once."""
    with ExitStack() as down:
        clients = crowd(down, port, size)
        return {"opened": size, "let_in": welcomed(clients)}


def half_packets(port: int, size: int) -> dict[str, int]:
    """`size` clients with 520 KB of a PUBLISH of 1 MB each."""
    data = memoryview(encode(Publish("half", bytes(1 << 20))))[:520_000]
    with ExitStack() as down:
        clients = crowd(down, port, size)
        let_in = welcomed(clients)
        left = dict.fromkeys(clients, data)
        deadline = time.monotonic() + SENDING_S
        while left and time.monotonic() < deadline:
            for client in writable(left):
                try:
                    left[client] = left[client][client.send(left[client][: 1 << 16], socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    continue
                except OSError:
                    del left[client]
                    continue
                if not left[client]:
                    del left[client]
        return {"opened": size, "let_in": let_in}


def writable(clients: Iterable[socket.socket]) -> list[socket.socket]:
    """Those that take bytes now; select() knows no descriptor above 1,023."""
    poll = select.poll()
    known = {client.fileno(): client for client in clients}
    for fd in known:
        poll.register(fd, select.POLLOUT)
    return [known[fd] for fd, _ in poll.poll(100)]


def large_wills(port: int, size: int) -> dict[str, int]:
    """`size` clients with wills of 64 KiB, which are all lost at once."""
    with ExitStack() as down:
        clients = crowd(down, port, size, will=Will("gone", bytes(65_000)))
        return {"opened": size, "let_in": welcomed(clients)}


def deaf_crowd(port: int, size: int) -> dict[str, int]:
    """100 clients subscribe, and read nothing of `size` MB that is for each of them."""
    with ExitStack() as down, connected(port, "loud") as loud:
        clients = crowd(down, port, 100, encode(Subscribe(1, (Subscription("deaf", 0),))))
        assert welcomed(clients) == 100
        block = packed(Publish("deaf", bytes(1_000)) for _ in range(1_000))
        for _ in range(size):
            loud.sendall(block)
        return {"published_mb": size, "alive": answered(loud)}


def mute_crowd(port: int, size: int) -> dict[str, int]:
    """100 clients subscribe with QoS 1, and acknowledge nothing of `size` thousand messages for each."""
    with ExitStack() as down, connected(port, "talker") as talker:
        clients = crowd(down, port, 100, encode(Subscribe(1, (Subscription("mute", 1),))))
        assert welcomed(clients) == 100
        for start in range(size):
            block = (
                Publish("mute", b"x" * 20, 1, packet_id=start * 1_000 % 60_000 + n + 1) for n in range(1_000)
            )
            talker.sendall(packed(block))
            drained(talker)
        return {"published": size * 1_000, "alive": answered(talker)}


def drained(client: socket.socket) -> None:
    """Forget what the broker has answered by now."""
    while select.select([client], [], [], 0)[0]:
        if not client.recv(1 << 16):
            return


def polite(port: int, size: int) -> dict[str, int]:
    """No abuse: what the others are compared with."""
    for n in range(size):
        with connected(port, f"polite-{n}") as client:
            client.sendall(encode(Disconnect()))
    return {"opened": size}


ABUSES: dict[str, Callable[[int, int], dict[str, int]]] = {
    function.__name__: function
    for function in (
        polite, silent_connections, trickled_connect, huge_claims, garbage, huge_publish, many_subscriptions,
        deep_topic, many_topics, many_retained,
        retained_topics, many_sessions, never_reads, never_acknowledges, never_releases, take_overs,
        connect_storm, subscription_churn, heavy_properties,
        connection_crowd, half_packets, large_wills, deaf_crowd, mute_crowd,
        connect_properties, subscribe_properties, four_mb_of_filters, filter_bomb,
    )
}  # fmt: skip

# What some leave behind, taken back: by the same port and size.
UNDO: dict[str, Callable[[int, int], None]] = {
    "many_retained": forget_retained,
    "retained_topics": forget_retained,
    "many_sessions": forget_sessions,
}
