"""Programs on the same machine: control socket, shared memory, ZeroMQ and producers."""
