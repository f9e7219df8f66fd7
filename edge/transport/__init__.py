"""Transports: the layers between a network and MQTT: TLS, WebSocket, the PROXY protocol, Unix sockets.

The C loop itself serves plain TCP, Unix sockets and WebSocket frames (ringbuf/c/mqtt/transport/). TLS ends on
one thread (relay_thread.py), and its bytes go to the loop through a socket pair, so that there is one parser
with one set of limits. Decides nothing about clients. Never touches the broker, the engine's connections or a
record.

    listen_sockets.py    listening sockets and their addresses
    tls.py               certificates
    proxy_protocol.py    PROXY protocol v2, without I/O
    websocket.py         HTTP upgrade to WebSocket, without I/O
    upgrades.py          answers to HTTP requests of WebSocket clients
    handshake.py         the steps before the C loop
    relay_connection.py  bytes in both directions, after the TLS handshake
    relay_thread.py      the thread, and its connections
"""
