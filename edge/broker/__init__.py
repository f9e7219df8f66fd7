"""Control plane of MQTT: connect, subscribe, sessions, wills, retained messages, routing.  No sockets.

    dispatcher.py          each event of the engine; connections.py: control packets to clients
    connect.py             CONNECT; plain_connect.py: the usual one, in one call; enhanced_auth.py: AUTH;
                           waiting_connects.py: packets of clients that are not authenticated yet
    subscribe.py           SUBSCRIBE; router.py, session_routes.py, subscription_tree.py: routes to sessions
    engine_rings.py        the ring of each topic; durability.py: refusals, and progress of sinks
    sessions.py            sessions; log_backfill.py: their records that only the log has; wills.py: wills
    retained_delivery.py   retained messages of new subscriptions
    authorization.py       permissions; limits.py, quotas.py, tenant_usage.py: limits
    counters.py            counters by cause and by client
    deferred.py            answers that come later; sliced_work.py: long work in steps

All of this runs on the broker's thread, once per client or control packet; the engine handles messages.
"""
