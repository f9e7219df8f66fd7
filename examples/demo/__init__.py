"""The proof on real input: this machine's vital signs, from MQTT clients to a Spark table, and a ledger.

`./dev demo` runs it, as `python -m examples.demo`.  Everything in it is a process of its own, as it would be
in real life: the broker, three publishers, two subscribers, Spark.  The demo cuts the sink off and kills the
broker with -9 while they work, and then counts every single message at every stage.

    __main__.py        arguments, exit status, what is left behind
    script.py          the run, act by act
    scene.py           directories, port and configuration of one run
    cast.py            every process of it
    watch.py           what is measured meanwhile
    broker.py          `brim run` as a process: started, killed, started again
    processes.py       child processes that speak JSON lines and die with their parent
    vitals.py          what this machine says about itself
    journal.py         what a publisher knows: published, acknowledged
    device.py          the loop of a publisher; device_amqtt.py, device_paho.py, burst.py: by which client
    subscribers.py     shared memory and ZeroMQ, every offset checked (offsets.py)
    tally.py           how often each message was seen: what all of them count with
    lake.py            from drained files to a table: by Spark, or without
    ledger.py          all counts side by side, and the verdict
    screen.py          one live screen, or plain lines
    report.py          the results, as text; page.py and plots.py: for a browser
"""
