"""The log compared with the bare disk, SQLite, LMDB and RocksDB: rates, acks, bytes written, starts.

    python -m benchmarks.log [--rounds 5] [--quick] [--only rate,vs] [--peers sqlite,lmdb] [--directory DIR]

In each round all take turns at every measurement, in one directory, and a ratio compares figures of one
round. Prints a table of medians and, as its last line, one JSON object. A measurement that this build or
machine cannot run is reported, and absent from the JSON.

    rate_over_fio          records of 256 bytes of payload made durable, as bytes of the log, over the best of
                           fio: O_DIRECT, 1 MiB, 8 at once; and 8 MiB through the page cache, each synced.
                           Also rate_over_fio_256, _1024, and payload_over_fio_256, _1024 of payload alone
    ack_over_fdatasync     p50 from publish() of one record to its durability, over pwrite and fdatasync of
                           as many bytes into a file of a segment's size that has its blocks
    vs_sqlite_1 .. _1000   records a second over SQLite's (WAL, synchronous=FULL), in commits of so many; so
    vs_lmdb_, vs_rocksdb_  LMDB's and RocksDB's, both synced.  Under vs_inline: the log as a library, where
                           who commits writes and syncs, too, instead of a thread that serves all
    written_per_payload_byte_batched, _singly, _singly_cached      as the device counts, less what it writes
                           while the log is idle; cached: through the page cache ([log] direct = false); and
    written_per_record_byte_...            of records as they stand in the ring, with topic and header
    rings_1000_over_1      rate of 1,000 rings over that of one with the same records, 128 to a ring at a
                           time.  One Python thread writes them all: _producer_alone is the same without a
                           log; rings_1_log_cpu_ns, rings_1000_...: of a record on the log's thread
    recovery_s_per_gib     of a start that has to look through everything; _singly: one record a run
    archive_ratio, archive_write_mb_s      JSON telemetry of 1,000 devices, written as Parquet; archive_mb_s:
                           written, read back and compared; archive_read_mb_s: records again;
                           _of_a_core: by processor time; archive_read_topic_ms, _absent_topic_ms: records of
                           one topic out of all archives
    read_topic_ms          all of one topic out of 100,000
    ingest_interval_over_process           MQTT messages a second, with durability "interval" over without

The log is measured in its normal state: full, its oldest segments reused. If it is allowed, acks, bare syncs
and the commits of all stores are measured from a thread of high priority (SCHED_FIFO), as the log's own:
otherwise other work on the machine would delay the peers and not the log. All other figures are worse on a
busy machine, for all; the load by other processes is printed at the end.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import _log_own as own
from benchmarks._log_device import FIO_WAYS, BareFile, Elsewhere, Fio, undisturbed
from benchmarks._log_stores import PEERS, TOPIC, BrimLog, ack_p50s, commit_rate, opened
from ringbuf import RECORD_HEADER_BYTES

ROOT = Path(__file__).resolve().parent.parent
PAYLOADS = (256, 1024)
COMMITS = (1, 10, 100, 1000)
PARTS = ("rate", "ack", "vs", "written", "rings", "recovery", "archive", "topic", "ingest")
RULE = "=" * 78

Figures = dict[str, list[float]]  # by name, one value per round


class Scale:
    """Durations and sizes; `--quick` is for a check that the benchmark runs."""

    def __init__(self, quick: bool) -> None:
        self.rate_s = 0.5 if quick else 1.5
        self.commit_s = 0.2 if quick else 0.6
        self.acks = 100 if quick else 400
        self.log_bytes = (128 << 20) if quick else (1 << 30)
        self.topic_records = own.TOPICS * (2 if quick else 10)
        self.archive_records = 60_000 if quick else 200_000


def note(found: Figures, **figures: float) -> None:
    """Add the figures of one more round."""
    for name, value in figures.items():
        found.setdefault(name, []).append(value)


# ---- measured in rounds ----


def rates(directory: Path, rounds: int, scale: Scale) -> Figures:
    """Appends, and fio."""
    fio = Fio(directory)
    found: Figures = {}
    logs = {size: BrimLog(directory / f"rate-{size}", size) for size in PAYLOADS}
    try:
        for log in logs.values():
            log.warm()
        for _ in range(rounds):
            ways = {way: fio.rate(way, scale.rate_s) for way in FIO_WAYS}
            best = max(ways.values())
            note(found, **{f"fio_{way}_mb_s": rate / 1e6 for way, rate in ways.items()})
            for size, log in logs.items():
                bytes_s, records_s = log.run(scale.rate_s)
                over, payload = bytes_s / best, records_s * size / best
                note(found, **{f"rate_over_fio_{size}": over, f"payload_over_fio_{size}": payload})
                note(found, **{f"append_{size}_mb_s": bytes_s / 1e6, f"append_{size}_per_s": records_s})
    finally:
        for log in logs.values():
            log.close()
    return found | {"rate_over_fio": found["rate_over_fio_256"]}


def acks(directory: Path, rounds: int, scale: Scale) -> Figures:
    """Acks, and bare syncs of a header, a record and the end mark of the log."""
    found: Figures = {}
    bare, brim = BareFile(directory), BrimLog(directory / "ack", PAYLOADS[0])
    data = bytes(3 * RECORD_HEADER_BYTES + len(TOPIC) + PAYLOADS[0])
    try:
        brim.warm()
        for _ in range(rounds):
            with undisturbed():
                ack, sync = ack_p50s(brim, lambda count: bare.syncs(count, data), scale.acks)
            note(found, ack_p50_us=ack, fdatasync_p50_us=sync, ack_over_fdatasync=ack / sync)
    finally:
        brim.close()
        bare.close()
    return found


def versus(directory: Path, rounds: int, scale: Scale, peers: list[str]) -> Figures:
    """Commits of each size by each store."""
    found: Figures = {}
    with opened(peers, directory, PAYLOADS[0]) as stores:
        for number in range(rounds + 1):  # the first warms up
            for count in COMMITS:
                with undisturbed():
                    now = {name: commit_rate(store, count, scale.commit_s) for name, store in stores.items()}
                if not number:
                    continue
                note(found, **{f"{name}_{count}_per_s": rate for name, rate in now.items()})
                theirs = {name: rate for name, rate in now.items() if name in PEERS}
                for mine, prefix in (("brim", "vs"), ("inline", "vs_inline")):
                    ratios = {f"{prefix}_{name}_{count}": now[mine] / rate for name, rate in theirs.items()}
                    note(found, **ratios)
    return found


# ---- output ----


def parts(arguments: argparse.Namespace, directory: Path) -> dict[str, Callable[[], Figures]]:
    """Measurements by name."""
    rounds, scale = arguments.rounds, Scale(arguments.quick)
    peers = [name for name in arguments.peers.split(",") if name]
    size = PAYLOADS[0]

    def each_round(measured: Callable[[], own.Figures]) -> Figures:
        found: Figures = {}
        for _ in range(rounds):
            note(found, **measured())
        return found

    def once(measured: own.Figures) -> Figures:
        return {name: [value] for name, value in measured.items()}

    return {
        "rate": lambda: rates(directory, rounds, scale),
        "ack": lambda: acks(directory, rounds, scale),
        "vs": lambda: versus(directory, rounds, scale, peers),
        "written": lambda: each_round(lambda: own.amplification(directory, size, scale.commit_s)),
        "rings": lambda: each_round(lambda: own.many_rings(directory, size, scale.rate_s)),
        "recovery": lambda: once(own.recovery(directory, size, rounds, scale.log_bytes)),
        "archive": lambda: each_round(lambda: own.archive(directory, scale.archive_records)),
        "topic": lambda: once(own.one_topic(directory, size, scale.topic_records)),
        "ingest": lambda: once(own.ingest(directory, rounds, scale.rate_s)),
    }


def told(value: float) -> str:
    """A figure as text with at least three digits."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def table(title: str, found: Figures) -> None:
    """Medians, with minimum and maximum of the rounds."""
    print(f"-- {title}")
    for name, values in found.items():
        spread = f"{told(min(values)):>12} ..{told(max(values)):>12}" if len(values) > 1 else ""
        print(f"   {name:40}{told(statistics.median(values)):>14}   {spread}")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="shorter and smaller: to see that it works")
    parser.add_argument("--only", default="", help="of " + ", ".join(PARTS))
    parser.add_argument("--peers", default=",".join(PEERS), help="of " + ", ".join(PEERS))
    parser.add_argument("--directory", type=Path, default=ROOT, help="on the disk in question")
    arguments = parser.parse_args()
    names = [name for name in arguments.only.split(",") if name] or list(PARTS)
    for given, known in ((names, PARTS), (arguments.peers.split(","), PEERS)):
        if unknown := [name for name in given if name and name not in known]:
            parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
    if arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds} is less than 1")
    elsewhere, begun = Elsewhere(), time.monotonic()
    everything: Figures = {}
    directory = Path(tempfile.mkdtemp(prefix=".log-bench-", dir=arguments.directory))
    try:
        for name in names:
            print(f"   {name} ...", flush=True)
            try:
                found = parts(arguments, directory)[name]()
            except own.NotThere as missing:
                print(f"{RULE}\n{name}: not there yet: {missing}\n{RULE}", flush=True)
                continue
            except FileNotFoundError as missing:
                if "apt-get" not in str(missing):
                    raise
                print(f"{RULE}\n{name} is NOT MEASURED: {missing}\n{RULE}", flush=True)
                continue
            table(name, found)
            everything |= found
    finally:
        shutil.rmtree(directory)
    busy = elsewhere.cores(time.monotonic() - begun)
    print(f"   other processes had {busy:.2f} of {os.cpu_count()} processors meanwhile")
    figures = {name: round(statistics.median(values), 4) for name, values in everything.items()}
    print(json.dumps({**figures, "busy_elsewhere": round(busy, 3)}))


if __name__ == "__main__":
    main()
