"""Requests and answers between programs of this machine: one layer for each socket of Brim.

protocol.py has the encoding, the version and the size limits, without I/O.  server.py, peers.py and client.py
use a SOCK_SEQPACKET socket.  A room supplies its messages and what they do: edge.local for the control socket
of the broker, bridge.drain for the command socket of a bridge.  Consumer groups (edge.consumers) supply
messages too, and send them by ZeroMQ, as consumers may be on other machines.

A leaf: imports only errors and logging of `edge`, so that the bridge may use it.
"""
