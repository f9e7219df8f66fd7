"""The broker process: receives MQTT, stores records in rings, serves local subscribers.

    rpc/            requests and answers between programs of this machine
    mqtt/           the protocol without I/O
    client/         the asyncio MQTT client
    config/         configuration: schema, rules, loader
    engine/         the C core as Python sees it
    auth/           authentication, authorization and tenants; amqtt_compat/: plug-ins of amqtt
    streams/        topics to rings, ring files, epochs
    session_store/  the part of sessions that is written down
    broker/         control plane: connect, subscribe, sessions, wills, retained messages, routing, durability
    recovery/       the state that a start reads back
    transport/      listening sockets, TLS, WebSocket, PROXY protocol
    log/            rings to the segment log, maintenance, readers
    delayed/        delayed messages
    backup/         backup and restore of the directories
    local/          programs on this machine: control socket, shared memory, ZeroMQ, producers
    consumers/      consumer groups
    load/           the load generator of `brim bench`
    sim/            simulated devices of `brim sim`
    observe/        status report, metrics
    sql/            SQL on rings, log and archive
    server/         composition root: starts and stops a broker
    web/            the process of the web console
    doctor/         checks of `brim doctor`
    cli/            the commands of `brim`

A room imports only rooms that stand above it here, and errors.py, logging_setup.py, log_throttle.py,
recent_lines.py, terminal_escape.py, unix_socket.py, verb_process.py and waiting.py, which import no room;
tests/test_layering.py has the exact table. Importing this package loads nothing, so that using only
`edge.mqtt` costs nothing else.
"""
