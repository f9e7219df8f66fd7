"""Measurements of Brim's log only: many rings, bytes written, start after a crash, one topic of many, ingest.

Each measurement returns its figures by name, or raises NotThere for a feature that this build lacks.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import select
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

from benchmarks._log_device import Device
from benchmarks._log_stores import PATIENCE_S, RETAIN_BYTES, TOPIC, BrimLog
from benchmarks._mqtt_process import Broker, Ports, free_port, process
from benchmarks._mqtt_tests import RATES, rate
from persistence import Log, LoggedRing, LogReader, LogThread, OsFiles, TooManyRings
from persistence.segment.format import segment_name
from ringbuf import Ring

MIB, GIB = 1 << 20, 1 << 30
SEVERAL_BYTES = 256 * MIB  # of payload: more segments than one
RINGS = 1000
RINGS_BYTES = 256 * MIB  # of all rings together
TURN = 128  # records to one ring before the next: with fewer, the producer is measured
TOPICS = 100_000

Figures = dict[str, float]


class NotThere(Exception):
    """A build without it."""


@contextmanager
def memory() -> Iterator[Path]:
    """A folder for rings."""
    with tempfile.TemporaryDirectory(prefix="brim-bench-", dir="/dev/shm") as place:
        yield Path(place)


# ---- bytes written to the device ----


def amplification(directory: Path, payload_bytes: int, seconds: float) -> Figures:
    """Bytes that the device wrote for each byte of payload, and for each byte of records.

    Measured in commits of 1000 over several segments, and in commits of one in a segment that was
    preallocated. The device counts writes of all programs. Its writes while the log was idle, before and
    after, are subtracted. The remainder includes the file system's journal, and irregular writes of others.
    """
    device = Device(directory)
    if not device.known:
        raise NotThere(f"{directory} is on no block device that counts its writes; use --directory")
    ways: dict[str, tuple[int, dict[str, Any]]] = {
        "batched": (1000, {}),
        "singly_cached": (1, {"direct": False}),
        "singly": (1, {}),
    }
    found: Figures = {}
    for way, (count, options) in ways.items():
        brim = BrimLog(directory / f"log-{way}", payload_bytes, **options)
        try:
            brim.warm()
            _ready(brim)
            idle = _idle_rate(device, seconds)
            stats = brim.log.stats
            records, record_bytes, before = stats.records, stats.record_bytes, device.written_bytes()
            started = time.perf_counter()
            while time.perf_counter() - started < seconds or (
                count > 1 and stats.records - records < SEVERAL_BYTES // payload_bytes
            ):
                brim.commit(count)
            took, written = time.perf_counter() - started, device.written_bytes() - before
            _settled(brim)
            written -= int((idle + _idle_rate(device, seconds)) / 2 * took)
        finally:
            brim.close()
            shutil.rmtree(brim.directory)
        found[f"written_per_payload_byte_{way}"] = written / ((stats.records - records) * payload_bytes)
        found[f"written_per_record_byte_{way}"] = written / (stats.record_bytes - record_bytes)
    return found


def _ready(brim: BrimLog) -> None:
    """Continue in a preallocated segment, with the next one preallocated, too, as in a log that keeps pace.

    So their preparation is not counted for the few records of this measurement.
    """
    _settled(brim)
    brim.roll()
    brim.commit(1)
    _settled(brim)
    os.sync()


def _settled(brim: BrimLog) -> None:
    """Wait until the log has no deferred work."""
    until = time.perf_counter() + PATIENCE_S
    while brim.log.needs_maintenance and time.perf_counter() < until:
        time.sleep(0.01)


def _idle_rate(device: Device, seconds: float) -> float:
    """Bytes per second that others write."""
    before = device.written_bytes()
    time.sleep(seconds)
    return (device.written_bytes() - before) / seconds


# ---- many rings ----


@contextmanager
def many(count: int) -> Iterator[list[Ring]]:
    """Rings, all together of one size."""
    capacity = max(1 << (RINGS_BYTES // count).bit_length() - 1, 64 << 10)
    with memory() as place, ExitStack() as stack:
        yield [
            stack.enter_context(Ring.create(place / f"many-{number}", capacity_bytes=capacity, epoch=1))
            for number in range(count)
        ]


def produce(rings: list[Ring], payload_bytes: int, seconds: float, told: int = -1) -> float:
    """Records per second of a producer that goes from ring to ring.

    `told` tells when a full ring has room.
    """
    payloads = [bytes(payload_bytes)] * TURN
    publishes = [ring.writer().publish_many for ring in rings] * (RINGS // len(rings))
    room = select.poll()  # select() cannot take a descriptor above 1,023
    if told >= 0:
        room.register(told, select.POLLIN)
    records, started = 0, time.perf_counter()
    while (now := time.perf_counter()) - started < seconds:
        taken = sum(publish(payloads, key=TOPIC) for publish in publishes)
        if told >= 0 and taken < TURN * RINGS // 2 and room.poll(10):
            os.eventfd_read(told)
        records += taken
    return records / (now - started)


def thread_cpu_s(name: str) -> float:
    """Processor time so far of the threads with that name in this process."""
    own = [it.native_id for it in threading.enumerate() if it.name == name]
    return sum(int(Path(f"/proc/self/task/{it}/schedstat").read_text().split()[0]) for it in own) / 1e9


def rings_rate(directory: Path, count: int, payload_bytes: int, seconds: float) -> tuple[float, float]:
    """Durable bytes per second of `count` rings that take turns; ns of the log's thread per record."""
    with many(count) as rings, ExitStack() as stack:
        told = os.eventfd(0, os.EFD_CLOEXEC)
        stack.callback(os.close, told)
        log = stack.enter_context(Log(directory, retain_bytes=RETAIN_BYTES))
        log.recover()
        thread = LogThread(log, [LoggedRing(ring, "disk") for ring in rings], wake_descriptor=told)
        try:
            thread.start()
        except TooManyRings as error:
            raise NotThere(str(error)) from error
        stack.callback(thread.stop)
        produce(rings, payload_bytes, seconds, told)  # warms up
        before, cpu_s, started = log.stats, thread_cpu_s("brim-log"), time.perf_counter()
        record_bytes, records = before.record_bytes, before.records
        produce(rings, payload_bytes, seconds, told)
        took, cpu_s = time.perf_counter() - started, thread_cpu_s("brim-log") - cpu_s
        after = log.stats
        return (after.record_bytes - record_bytes) / took, cpu_s * 1e9 / (after.records - records)


def many_rings(directory: Path, payload_bytes: int, seconds: float) -> Figures:
    """1,000 rings compared with one ring, at the same records and turns.

    The same producer without a log touches as many rings, and is the reference.
    """
    rates, cpus, alone = {}, {}, {}
    for count in (1, RINGS):
        with many(count) as rings:
            produce(rings, payload_bytes, seconds / 2)
            alone[count] = produce(rings, payload_bytes, seconds / 2)
        place = directory / f"rings-{count}"
        try:
            rates[count], cpus[count] = rings_rate(place, count, payload_bytes, seconds)
        finally:
            shutil.rmtree(place, ignore_errors=True)
    return {
        "rings_1_mb_s": rates[1] / 1e6,
        "rings_1000_mb_s": rates[RINGS] / 1e6,
        "rings_1000_over_1": rates[RINGS] / rates[1],
        "rings_1000_over_1_producer_alone": alone[RINGS] / alone[1],
        "rings_1_log_cpu_ns": cpus[1],
        "rings_1000_log_cpu_ns": cpus[RINGS],
    }


# ---- starting ----


def written_log(
    directory: Path, total_bytes: int, payload_bytes: int, run_bytes: int, segment_bytes: int
) -> int:
    """Write a log as a killed process leaves it, with records in runs of `run_bytes`. Returns its size."""
    payloads = [bytes(payload_bytes)] * 1000
    with memory() as place, Ring.create(place / "fill-0", capacity_bytes=64 * MIB, epoch=1) as ring:
        log = Log(directory, retain_bytes=0, segment_bytes=segment_bytes)
        log.recover()
        ring_id = log.join(ring.name, ring.epoch, 0)
        writer = ring.writer()
        with ring.reader(name="fill", local=True, blocks_writer=True) as reader:
            while log.stats.record_bytes < total_bytes:
                while writer.end_position - reader.cursor < 8 * MIB:
                    writer.publish_many(payloads, key=TOPIC)
                while found := reader.ranges(run_bytes, 1):
                    log.append(ring_id, found)
                log.write()
                log.sync()
                reader.release(reader.cursor)
        image = directory.with_name(directory.name + "-image")
        shutil.copytree(directory, image)
        log.close()
    shutil.rmtree(directory)
    image.rename(directory)
    for file in directory.iterdir():
        if file.suffix == ".tmp":
            file.unlink()
    return sum(file.stat().st_size for file in directory.iterdir())


def cold(directory: Path) -> None:
    """Remove these files from the page cache."""
    for file in directory.rglob("*"):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def start_s(image: Path, work: Path) -> float:
    """Seconds of a start with a copy of `image` that is not in the page cache."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(image, work)
    cold(work)
    log = Log(work, retain_bytes=0)
    started = time.perf_counter()
    report = log.recover()
    took = time.perf_counter() - started
    assert report.rings["fill-0"].end_offset > 0
    log.close()
    shutil.rmtree(work)
    return took


def recovery(directory: Path, payload_bytes: int, rounds: int, total_bytes: int) -> Figures:
    """Seconds of a start after a kill, without the page cache.

    Measured with a whole GiB to scan, in large and in single runs; and with segments of the usual size.
    """
    found: Figures = {}
    single_bytes = max(total_bytes // 16, 8 * MIB)
    for name, total, run, segment in (
        ("recovery_s_per_gib", total_bytes, MIB, 4 * GIB - MIB),
        ("recovery_singly_s_per_gib", single_bytes, 1, 4 * GIB - MIB),
        ("restart_s", total_bytes, MIB, 64 * MIB),
    ):
        image, work = directory / "image", directory / "work"
        size = written_log(image, total, payload_bytes, run, segment)
        seconds = statistics.median(start_s(image, work) for _ in range(rounds))
        found[name] = seconds if name == "restart_s" else seconds * GIB / size
        shutil.rmtree(image)
    return found


# ---- one topic of many ----


def one_topic(directory: Path, payload_bytes: int, records: int, looks: int = 20) -> Figures:
    """Time to read all of one topic out of 100,000, sealed and not in the page cache; and to read all
    records.
    """
    if not hasattr(LogReader, "read_topic"):
        raise NotThere("LogReader.read_topic()")
    place = directory / "topics"
    with (
        memory() as rings,
        Ring.create(rings / "many-0", capacity_bytes=64 * MIB, epoch=1) as ring,
        Log(place, retain_bytes=0) as log,
    ):
        log.recover()
        thread = LogThread(log, [LoggedRing(ring, "interval", 100, 8 * MIB)])
        thread.start()
        writer, payload = ring.writer(), bytes(payload_bytes)
        begun, number = math.inf, 0
        while number < records or log.stats.segments_begun <= begun:  # up to the beginning of a segment
            if number == records:
                begun = log.stats.segments_begun
            key = b"plant/%06d/temp" % (number % TOPICS)
            while writer.publish(payload, key) is None:
                time.sleep(0.001)
            number += 1
        thread.stop()
        log.run_maintenance()  # indexes of the segments that were sealed last
    cold(place)
    reader = LogReader(OsFiles(), str(place))
    reader.refresh()
    times = []
    for look in range(looks):
        topic = f"plant/{look * TOPICS // looks:06d}/temp"
        started = time.perf_counter()
        held = _topic_records(reader, topic)
        times.append((time.perf_counter() - started) * 1e3)
        assert held >= records // TOPICS, (topic, held)
    cold(place)
    started = time.perf_counter()
    offset = 0
    while found := reader.read("many-0", 1, offset, 8 * MIB):
        offset = found[-1].offset + found[-1].count
    whole_ms = (time.perf_counter() - started) * 1e3
    shutil.rmtree(place)
    return {
        "read_topic_first_ms": times[0],
        "read_topic_ms": statistics.median(times[1:]),
        "read_all_ms": whole_ms,
        "read_topic_over_read_all": statistics.median(times[1:]) / whole_ms,
    }


def _topic_records(reader: LogReader, topic: str) -> int:
    """Number of records in the runs with that topic."""
    held = offset = 0
    name = topic.encode()
    while found := reader.read_topic("many-0", topic, 1, offset, MIB):
        held += sum(bytes(it.view).count(name) for it in found)
        offset = found[-1].offset + found[-1].count
    return held


# ---- ingest by MQTT ----

INGEST = {"q0": "ingest_q0_50", "q1": "ingest_q1_window100"}


@contextmanager
def broker(directory: Path, durability: str) -> Iterator[Broker]:
    """`brim run` with its log on the disk, and all topics of that durability."""
    port, place = free_port(), directory / f"broker-{durability}"
    place.mkdir()
    with memory() as run:
        lines = [
            f"runtime_dir = {json.dumps(str(run))}",
            f"state_dir = {json.dumps(str(place))}",
            "[[listener]]",
            f"port = {port}",
            "[log]",
            f"retain_bytes = {RETAIN_BYTES}",
            "[[stream]]",
            'name = "all"',
            'topics = ["#"]',
            f"durability = {json.dumps(durability)}",
        ]
        (place / "brim.toml").write_text("\n".join(lines) + "\n")
        verb = ["run", "--config", str(place / "brim.toml"), "--log-level", "warning", "--quiet"]
        name = f"brim-{durability}"
        with process(name, [sys.executable, "-m", "edge", *verb], Ports(port), directory) as started:
            yield started
    shutil.rmtree(place)


def ingest(directory: Path, rounds: int, seconds: float) -> Figures:
    """MQTT messages per second into a log, relative to a broker without one."""
    ratios: dict[str, list[float]] = {name: [] for name in INGEST}
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        both = {it: stack.enter_context(broker(directory, it)) for it in ("process", "interval")}
        for number in range(rounds + 1):  # the first warms up
            for name, test in INGEST.items():
                now = {}
                for durability, one in both.items():
                    now[durability] = rate(one, RATES[test], seconds).value
                    if number:
                        rates.setdefault(f"ingest_{name}_{durability}_per_s", []).append(now[durability])
                if number:
                    ratios[name].append(now["interval"] / now["process"])
    found = {name: statistics.median(values) for name, values in rates.items()}
    medians = {name: statistics.median(values) for name, values in ratios.items()}
    found |= {f"ingest_{name}_interval_over_process": value for name, value in medians.items()}
    return found | {"ingest_interval_over_process": min(medians.values())}


# ---- the archive ----

DEVICES = 1000


def telemetry(records: int) -> Iterator[tuple[bytes, bytes]]:
    """Topic and payload of what devices say in turn: values that drift, a counter, a word that seldom
    changes.
    """
    random = Random(1)
    temperature = [random.uniform(15, 30) for _ in range(DEVICES)]
    pressure = [random.uniform(990, 1030) for _ in range(DEVICES)]
    for number in range(records):
        device = number % DEVICES
        temperature[device] += random.gauss(0, 0.05)
        pressure[device] += random.gauss(0, 0.1)
        reading = {
            "device": f"press-{device:04d}",
            "ts": 1_700_000_000_000 + number * 10 + random.randrange(10),
            "seq": number // DEVICES,
            "temperature": round(temperature[device], 2),
            "pressure": round(pressure[device], 1),
            "rpm": 1480 + random.randrange(-15, 16),
            "vibration": [round(abs(random.gauss(0.4, 0.1)), 3) for _ in range(3)],
            "state": "running" if random.random() < 0.995 else "idle",
        }
        yield b"plant/1/press/%04d/telemetry" % device, json.dumps(reading).encode()


def archive(directory: Path, records: int) -> Figures:
    """Compression ratio of telemetry of 1,000 devices, and the rates of writing and of reading it: all of it,
    and one topic.
    """
    try:
        from persistence.archive import Archive, archive_segment
        from persistence.archive.archive_writer import write_archive
        from persistence.archive.sealed_segment import SegmentSource
        from persistence.errors import ArchiveUnavailable
    except ImportError as missing:
        raise NotThere("persistence.archive") from missing
    place, files = directory / "telemetry", OsFiles()
    ends = _telemetry_log(place, records)
    try:
        archived = [archive_segment(files, str(place), base, end) for base, end in ends.items()]  # warms up
    except ArchiveUnavailable as missing:
        raise NotThere(str(missing)) from missing
    plain, packed = sum(it.segment_bytes for it in archived), sum(it.archive_bytes for it in archived)

    def write() -> None:
        for base, end in ends.items():
            with SegmentSource.opened(files, str(place / segment_name(base)), base, end) as source:
                write_archive(files, str(place / "again.tmp"), source)

    def write_and_prove() -> None:
        for path in place.glob("*.parquet"):
            path.unlink()
        for base, end in ends.items():
            archive_segment(files, str(place), base, end)

    def read(topic: bytes = b"") -> int:
        reader, offset, count = Archive(files, str(place)), 0, 0
        while found := (
            reader.read_topic("press-0", topic, 1, offset, 8 * MIB)
            if topic
            else reader.read("press-0", 1, offset, 8 * MIB)
        ):
            offset, count = found[-1].offset + found[-1].count, count + sum(it.count for it in found)
        return count

    figures = {"archive_ratio": plain / packed}
    figures |= _rates("archive_write", plain, write)
    figures |= _rates("archive", plain, write_and_prove)
    figures |= _rates("archive_read", plain, read)
    assert read() == sum(it.records for it in archived)
    assert read(b"plant/1/press/0500/telemetry") >= sum(it.records for it in archived) // DEVICES
    for name, device in (("topic", 500), ("absent_topic", DEVICES)):
        started = time.perf_counter()
        read(b"plant/1/press/%04d/telemetry" % device)
        figures[f"archive_read_{name}_ms"] = (time.perf_counter() - started) * 1e3
    shutil.rmtree(place)
    return figures


def _telemetry_log(place: Path, records: int) -> dict[int, int]:
    """Write a log of telemetry; the end of each sealed segment, by base."""
    with (
        memory() as rings,
        Ring.create(rings / "press-0", capacity_bytes=64 * MIB, epoch=1) as ring,
        Log(place, retain_bytes=0, segment_bytes=8 * MIB) as log,
    ):
        log.recover()
        thread = LogThread(log, [LoggedRing(ring, "interval", 100, MIB)])
        thread.start()
        writer = ring.writer()
        for topic, payload in telemetry(records):
            while writer.publish(payload, topic) is None:
                time.sleep(0.001)
        thread.stop()
        bases = log.reader.bases()
    return {base: after - base for base, after in itertools.pairwise(bases)}


def _rates(name: str, plain_bytes: int, work: Callable[[], object]) -> Figures:
    """Bytes of the log a second, by the clock and by processor time, pyarrow's threads included."""
    started, cpu_s = time.perf_counter(), time.process_time()
    work()
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_s
    return {f"{name}_mb_s": plain_bytes / seconds / 1e6, f"{name}_mb_s_of_a_core": plain_bytes / cpu_s / 1e6}
