"""Composition root: builds the broker from a configuration, starts and stops it.

    server.py               the parts of a broker, in order; mqtt_startup.py and services.py start them
    live_configuration.py   changes by a reload; added_streams.py, sighup.py
    disk_reserve.py         a start on a full disk; leftovers.py and epoch_traces.py: after a kill or a loss
    retention_holds.py      the log that its readers still need; producer_feed.py: records of local producers
    watchdog.py             clients that wait; state_saver.py: saves the state on request

The other files build one room each from the configuration, or start one child process.
"""
