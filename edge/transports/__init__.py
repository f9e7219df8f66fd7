"""Transports: the layers between a network and MQTT: TLS, WebSocket, the PROXY protocol, Unix sockets.

The C loop itself accepts and reads plain TCP and Unix sockets. All other connections are unwrapped on one
thread (relays.py), and their bytes go to the loop through a socket pair, so that there is one parser with one
set of limits. Decides nothing about clients. Never touches the broker, the engine's connections or a record.

    binding.py    listening sockets and their addresses
    tls.py        certificates
    proxy.py      PROXY protocol v2, without I/O
    websocket.py  WebSocket, without I/O
    handshake.py  all steps of a connection before MQTT
    relay.py      bytes in both directions, after the handshake
    relays.py     the thread, and its connections
"""
