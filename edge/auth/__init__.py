"""Authentication and authorization from files and plug-ins: implementations of the protocols in edge.access.

    hashes          one stored password: its text form, making and checking it
    password_file   the file of users: reads it and reports all mistakes, changes one line of it
    passwords       checks passwords on separate threads, never on the one that serves MQTT
    turns           work of many addresses for a few threads: an address with much work delays only itself
    scram           SCRAM-SHA-256, a proof of the password without sending it
    rules           the topics that a user may publish and receive, as trees
    acl_file        the text form of rules
    plugins         amqtt's plug-ins behind the same protocols; only amqtt_plugins imports amqtt
    plugin_events   notifies those plug-ins of client events
    guard           combines all of them by the configuration, and reloads files on demand

Importing this package loads nothing.
"""
