"""Authentication and authorization: the protocols, and implementations from files and plug-ins.

    interfaces.py        protocols of authentication and authorization
    password_hash.py     one stored password: its text form, making and checking it
    password_file.py     the file of users: reads it and reports all mistakes, changes one line of it
    password_checker.py  checks passwords on separate threads, never on the one that serves MQTT
    fair_executor.py     work of many addresses for a few threads: each address delays only itself
    scram.py             SCRAM-SHA-256, a proof of the password without sending it
    acl.py               the topics that a user may publish and receive, as trees
    acl_file.py          the text form of these rules
    tenants.py           the tenant of each client, by listener, user or certificate
    tenant_names.py      topics, filters and client identifiers with the prefix of a tenant
    tenant_streams.py    the streams that tenants share, for warnings and for their stored bytes
    amqtt_compat/        amqtt's plug-ins behind the same protocols, and the client events for them
    backend.py           combines all of them by the configuration, and reloads files on demand

Importing this package loads nothing.
"""
