"""Transports: the layers between a network and MQTT: TLS, WebSocket, the PROXY protocol, Unix sockets.

The C loop serves all of them by layers below its parser (ringbuf/c/mqtt/transport/), so that there is one
parser with one set of limits. This room configures the layers and answers their requests. Decides nothing
about clients. Never touches a record.

    listen_sockets.py      listening sockets and their addresses
    tls.py                 certificates
    violations.py          log of connections that break the rules of TLS or PROXY
    proxy_protocol.py      PROXY protocol v2, without I/O
    proxy_answers.py       answers to PROXY headers
    websocket_upgrade.py   HTTP upgrade to WebSocket, without I/O
    upgrade_answers.py     answers to HTTP requests of WebSocket clients
"""
