"""Transports: the layers between a network and MQTT: TLS, WebSocket, the PROXY protocol, Unix sockets.

The C loop itself accepts and reads plain TCP and Unix sockets. All other connections are unwrapped on one
thread (relay_thread.py), and their bytes go to the loop through a socket pair, so that there is one parser
with one set of limits. Decides nothing about clients. Never touches the broker, the engine's connections or a
record.

    listen_sockets.py    listening sockets and their addresses
    tls.py               certificates
    proxy_protocol.py    PROXY protocol v2, without I/O
    websocket.py         WebSocket, without I/O
    handshake.py         all steps of a connection before MQTT
    relay_connection.py  bytes in both directions, after the handshake
    relay_thread.py      the thread, and its connections
"""
