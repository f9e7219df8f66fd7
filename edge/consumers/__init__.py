"""Named consumers and consumer groups: who has been handed which records, and what is done with them.

What a group has committed is stored apart from the records (offsets.py, journal.py); what is under way is in
memory (window.py, groups.py) and comes again when it is lost.  service.py answers requests (messages.py)
without sockets; endpoint.py is the ZeroMQ ROUTER around it, client.py the other side.
"""
