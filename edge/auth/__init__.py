"""Who may connect and what they may do, from files and plug-ins: implementations of the seams in edge.access.

    hashes          one stored password: its text form, making and checking it
    password_file   the file of users: reading it with its mistakes, changing one line of it
    passwords       checks passwords on threads of its own, never on the one that serves MQTT
    turns           work of many addresses for a few threads: who asks a lot waits behind itself
    scram           SCRAM-SHA-256, a proof of the password that does not send it
    rules           what a user may publish and receive, as trees
    acl_file        the text form of rules
    plugins         amqtt's plug-ins behind the same seams; amqtt_plugins alone imports amqtt
    plugin_events   what clients do, told to those plug-ins
    guard           all of them together, as the configuration says, and read again on demand

Importing this package loads nothing.
"""
