"""Control plane of MQTT: connect, subscribe, sessions, wills, retained messages, routing.  No sockets."""
