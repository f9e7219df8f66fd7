"""Consumer groups: named groups of consumers that share the records of partitions and acknowledge them.

The progress of a group is stored apart from the records (offset_store.py, offset_journal.py). Records that
members have now are tracked in memory (ack_tracker.py, groups.py), and are delivered again if that is lost.
coordinator.py answers requests (protocol.py) without sockets; durable_answers.py has the answers that wait
for the journal. dead_letters.py publishes records after their last try. server.py is the ZeroMQ ROUTER around
the coordinator, client.py the client side.
"""
