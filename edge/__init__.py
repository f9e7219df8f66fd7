"""The broker process: receives MQTT, stores records in rings, serves local subscribers.

    mqtt/           the protocol without I/O
    client/         the asyncio MQTT client
    config/         configuration: schema, rules, loader
    engine/         the C core as Python sees it
    auth/           authentication and authorization; amqtt_compat/: plug-ins of amqtt
    streams/        topics to rings, ring files, epochs
    session_store/  the part of sessions that is written down
    broker/         control plane: connect, subscribe, sessions, wills, retained messages, routing, durability
    recovery/       the state that a start reads back
    transport/      listening sockets, TLS, WebSocket, PROXY protocol
    log/            rings to the segment log, maintenance, readers
    local/          programs on this machine: control socket, shared memory, ZeroMQ, producers
    consumers/      consumer groups
    observe/        status report, metrics
    server/         composition root: starts and stops all of the above
    cli/            the commands of `brim`
    load/           the load generator of `brim bench`

A room imports only rooms that stand above it here, and errors.py, logging_setup.py, log_throttle.py,
terminal_escape.py, verb_process.py and waiting.py, which import no room; tests/test_layering.py has the exact
table. Importing this package loads nothing, so that using only `edge.mqtt` costs nothing else.
"""
