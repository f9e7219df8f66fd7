"""Plug-ins of amqtt: loads them and adapts them to the interfaces of edge.auth."""
