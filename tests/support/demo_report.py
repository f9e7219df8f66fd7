"""The report of a small run that never was: four devices, twenty seconds, a sink that was cut off."""

from examples.demo.journal import JournalFile
from examples.demo.lake import Aggregate, Arrived, Lake
from examples.demo.ledger import Stage, build
from examples.demo.plots import Outage, Sample
from examples.demo.report import Report
from examples.demo.tally import Tally

BEGIN = 1_795_248_000
DEVICES = ("host/a/cpu/0", "host/a/cpu/1", "host/a/disk/vda", "replay/<b>/load")


def make_report(*, lose: int = 0) -> Report:
    """`lose`: acknowledged messages that no stage has."""
    acked, seen = Tally(), Tally()
    acked.expect("host/a/cpu/0", 10)
    seen.expect("host/a/cpu/0", 10 - lose)
    stages = [Stage(name, 10, 0, 0, seen) for name in ("shared memory", "in the table")]
    ledger = build([JournalFile("amqtt", {"host/a/cpu/0": 10}, acked, {})], stages)
    seconds = [Aggregate(device, BEGIN + n, 3, float(n), 0.0, 9.0) for device in DEVICES for n in range(20)]
    minutes = [Aggregate(device, BEGIN, 60, 2.5, 0.0, 1_234_567.0) for device in DEVICES]
    lake = Lake("Spark 4.3.0", 3.0, 10, 0, 0, minutes, seconds, [("bronze", 1.0, "10 rows")], seen)
    samples = [Sample(BEGIN + n / 2, n, n, n, n, max(n - 4, 0), n) for n in range(40)]
    outages = [Outage("sink cut off", BEGIN + 5, BEGIN + 8, "#b7791f")]
    arrived = Arrived(3, 4_000_000, 10, 0, 0)
    events = [(BEGIN + 1.0, "it <began> & went on")]
    return Report(ledger, lake, arrived, samples, outages, events, "a & b", BEGIN, BEGIN + 20)
