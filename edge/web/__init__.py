"""Web console: management API and pages over HTTP, in a process of its own.

    guard.py         limits, Host, headers, CSRF: every request passes it
    login_check.py   the session of a request's cookie, and the decision by its role and CSRF token
    app.py           routes of the API (read_api, sql_api, action_api, session_api) and of the pages
    monitor.py, client_list.py, topic_sampler.py, tap_feed.py    views, shared by all browsers
    query_process.py a query of SQL, in a process of its own
    broker_link.py   requests to the broker, over its sockets

Reads what `brim top`, `brim topics` and `brim clients` read, and costs the broker nothing while no page is
open. Never imported by the broker. Only app.py, guard.py and http_server.py know the libraries of the extra
`web`.
"""
