"""Consumer groups: named groups of consumers that share the records of partitions and acknowledge them.

The progress of a group is stored apart from the records (offsets.py, journal.py). Records that members have
now are tracked in memory (window.py, groups.py), and are delivered again if that is lost. service.py answers
requests (messages.py) without sockets; endpoint.py is the ZeroMQ ROUTER around it, client.py the client side.
"""
