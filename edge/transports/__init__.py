"""What lies between a network and MQTT: TLS, WebSocket, the PROXY protocol, Unix sockets.

Plain TCP and Unix sockets are accepted and read by the C loop itself.  All else is unwrapped on one thread
(relays.py), and the bytes inside go to the loop through a socket pair, so that there is one parser with one
set of limits.  Decides nothing about clients; never touches the broker, the engine's connections or a record.

    binding.py    listening sockets and where they are
    tls.py        certificates
    proxy.py      PROXY protocol v2, without I/O
    websocket.py  WebSocket, without I/O
    handshake.py  what a connection goes through before it may speak MQTT
    relay.py      bytes in both directions, afterwards
    relays.py     the thread, with the connections it has
"""
