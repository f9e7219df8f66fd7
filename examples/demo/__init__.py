"""Demo on real input: this machine's vital signs, from MQTT clients to a Spark table, with a ledger at the
end.

`./dev demo` runs it, as `python -m examples.demo`. Each part is a process of its own, as in a real plant: the
broker, three publishers, two subscribers, Spark. The demo cuts the sink off and kills the broker with -9
while they work. Then it counts every message at every stage.

    __main__.py        arguments, exit status, files of the result
    script.py          the run, act by act
    scene.py           directories, port and configuration of one run
    cast.py            all processes of the run
    watch.py           measurements during the run
    broker.py          `brim run` as a process: started, killed, started again
    processes.py       child processes that write JSON lines and end with their parent
    vitals.py          vital signs of this machine
    journal.py         messages of a publisher: published, acknowledged
    device.py          the loop of a publisher; device_amqtt.py, device_paho.py, burst.py: by client
    subscribers.py     shared memory and ZeroMQ, every offset checked (offsets.py)
    tally.py           number of times each message was seen, used by all stages
    lake.py            from drained files to a table: by Spark, or without
    ledger.py          all counts side by side, and the verdict
    screen.py          one live screen, or plain lines
    report.py          the results, as text; page.py and plots.py: for a browser
"""
