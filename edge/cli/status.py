"""Show the state of a running broker: clients, rings, log and bridges, and all losses with their causes.

Exit status: 0 all is well, 1 something needs attention (a bridge or the log has stopped), 3 no broker is
reachable, 4 refused by the broker, 6 all runs and a bridge has lost records: they were overwritten, deleted
or damaged before they were drained. All other losses since the start are shown and do not change the status;
--json has every counter, for alarms.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import msgspec

from edge.cli.color import colored
from edge.cli.config_options import add_broker_arguments
from edge.cli.exit_status import Exit
from edge.cli.humanize import (
    bytes_in_words,
    count_in_words,
    counted,
    micros_in_words,
    seconds_in_words,
)
from edge.local.protocol import Connection, Report, Status
from edge.observe.health import troubles, upstream_waits
from edge.terminal_escape import escaped

OWNER_SHARE = 10  # an owner with a smaller part of a table is not shown
_CAUSES = {
    "overwritten": "overwritten in the ring before they were drained",
    "retention": "removed from the log before they were drained",
    "damaged": "damaged in memory before they were drained",
}
RANGES_SHOWN = 4  # of one partition; --json has more


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim status`."""
    parser.add_argument("--json", action="store_true", help="print the whole report as one JSON object")
    parser.add_argument("--clients", action="store_true", help="show MQTT clients, those with losses first")
    parser.add_argument("--readers", action="store_true", help="show the readers of each ring and their lag")
    add_broker_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Request the report and print it."""
    with Connection(arguments.runtime_dir) as connection:
        status = connection.request(Status(), Report).report
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(status), indent=2).decode())
    else:
        for line in _lines(status, clients=arguments.clients, readers=arguments.readers):
            print(_colored(escaped(line)))
    if troubles(status):
        return Exit.INCOMPLETE
    return Exit.LOST if any(bridge["verdict"] == "lost" for bridge in status["bridges"]) else 0


def _colored(line: str) -> str:
    """Losses in red, warnings in yellow."""
    first = line.split(maxsplit=1)[0]
    color = {"WARNING": "yellow", "LOST": "red"}.get(first, "")
    return colored(line, color) if color else line


def _lines(status: dict[str, Any], *, clients: bool, readers: bool) -> Iterator[str]:
    up = seconds_in_words(status["uptime_s"])
    yield f"brim {status['version']} of {status['edge_id']}, process {status['pid']}, up {up}"
    mqtt, rates = status["mqtt"], status["rates"]
    yield (
        f"mqtt     {', '.join(status['listeners'])}: {count_in_words(mqtt['connections'])} connected, "
        f"{counted(mqtt['sessions'], 'session')}, {counted(mqtt['topics'], 'topic')}, "
        f"{count_in_words(mqtt['retained'])} retained"
    )
    if rates:
        yield (
            f"rates    {count_in_words(rates['published'] + rates['from_producers'])} messages/s in, "
            f"{count_in_words(rates['delivered'])} out"
        )
    if status["watchdog"].get("stalls"):
        dog = status["watchdog"]
        ago = seconds_in_words(dog["last_ago_s"])
        yield f"stalls   {count_in_words(dog['stalls'])}, the last {ago} ago: {dog['last']}"
    yield from _owner_lines(status["owners"])
    yield from map(_tenant_line, status["tenants"])
    for ring_status in status["rings"]:
        yield from _ring_lines(ring_status, readers=readers)
    if status["zmq"]:
        zmq = status["zmq"]
        sent = count_in_words(zmq["sent"])
        yield f"zmq      {zmq['endpoint']}: {counted(zmq['prefixes'], 'subscription')}, {sent} sent"
    if delayed := status.get("delayed"):
        yield _delayed_line(delayed)
    for bridge in status["bridges"]:
        yield _bridge_line(bridge)
        yield from loss_lines(bridge)
    for waits in upstream_waits(status):
        missing = f"lacks the last {counted(waits.missing, 'record')}" if waits.missing else "has all records"
        yield f"upstream {waits.ring}: bridge {waits.bridge} {missing}"
    if status["log"]:
        yield from _log_lines(status["log"], rates)
    for consumer in status.get("consumers") or ():
        yield f"consumer {consumer['name']}: {counted(consumer['lag'], 'record')} behind"
    if clients:
        yield from _client_lines(status)
    yield from (f"lost     {cause}: {count_in_words(count)}" for cause, count in status["lost"].items())
    if not status["lost"]:
        yield "lost     nothing"
    yield from (f"WARNING  {trouble.why}" for trouble in troubles(status))
    if status["shortened"]:
        yield f"         (left out, to fit: {', '.join(status['shortened'])})"


def _owner_lines(owners: dict[str, Any]) -> Iterator[str]:
    """Users and addresses with the largest parts of each table, if one has a tenth of it."""
    for table, table_info in owners.items():
        if max(table_info["owners"].values()) * OWNER_SHARE >= table_info["room"]:
            owner_texts = ", ".join(
                f"{owner} {count_in_words(has)}" for owner, has in table_info["owners"].items()
            )
            yield f"most     {table} (room for {count_in_words(table_info['room'])}): {owner_texts}"


def _tenant_line(tenant: dict[str, Any]) -> str:
    refused = ", ".join(
        f"{count_in_words(count)} {cause}" for cause, count in tenant["refused"].items() if count
    )
    stored = f"{bytes_in_words(tenant['stored_bytes'])} in the log, " if "stored_bytes" in tenant else ""
    delayed = f"{count_in_words(tenant['delayed'])} delayed, " if tenant["delayed"] else ""
    return (
        f"tenant   {tenant['name']}: {count_in_words(tenant['connections'])} connected, "
        f"{counted(tenant['sessions'], 'session')} kept, {counted(tenant['topics'], 'topic')}, "
        f"{count_in_words(tenant['retained'])} retained, {delayed}{stored}"
        f"{count_in_words(tenant['published'])} published, "
        f"{counted(tenant['rate_waits'], 'wait')} for its rate, refused: {refused or 'nothing'}"
    )


def _ring_lines(ring: dict[str, Any], *, readers: bool) -> Iterator[str]:
    durable = ""
    if ring.get("durability", "process") != "process":
        durable = f", {bytes_in_words(ring['not_durable_bytes'])} not yet on disk"
    yield (
        f"ring     {ring['name']}: {counted(ring['end_offset'] - ring['oldest_offset'], 'record')}, "
        f"{bytes_in_words(ring['bytes'])} of {bytes_in_words(ring['capacity_bytes'])}, next offset "
        f"{ring['end_offset']}, {ring['unread_ratio']:.0%} not read by blocking readers{durable}"
    )
    if readers:
        for reader in ring["readers"]:
            reader_name = f"{reader['name'] or 'reader'} ({reader['pid']})"
            lag, lost = count_in_words(reader["lag"]), count_in_words(reader["lost"])
            yield f"  reader {reader_name}: {reader['state']}, {lag} behind, {lost} lost"
        if ring["readers_not_shown"]:
            yield f"  and {ring['readers_not_shown']} more readers"


def _delayed_line(delayed: dict[str, Any]) -> str:
    refuses = f", new ones are refused: {delayed['failure'] or 'full'}" if delayed["refuses"] else ""
    return (
        f"delayed  {counted(delayed['pending'], 'message')} waiting, {bytes_in_words(delayed['bytes'])}, "
        f"{count_in_words(delayed['delivered'])} delivered, {count_in_words(delayed['cancelled'])} "
        f"cancelled{refuses}"
    )


def _bridge_line(bridge: dict[str, Any]) -> str:
    if does_not_answer(bridge):
        return f"bridge   {bridge['name']}: {bridge['condition']}, to {bridge['to']}"
    behind = f"{counted(bridge['lag_records'], 'record')} behind"
    if bridge["lag_records"]:
        behind += f" ({seconds_in_words(bridge['lag_s'])})"
    return (
        f"bridge   {bridge['name']}: {bridge['condition']}, {behind}, "
        f"{count_in_words(bridge['totals']['records'])} drained to {bridge['to']}"
    )


def does_not_answer(bridge: dict[str, Any]) -> bool:
    """True if no process runs this bridge: its figures are unknown, not zero."""
    return bridge["condition"] == "stopped" and not bridge["partitions"]


def loss_lines(bridge: dict[str, Any]) -> Iterator[str]:
    """Records that no drained file will ever have, by partition: causes and ranges."""
    for loss in bridge["losses"]:
        place = f"{loss['stream']}/{loss['partition']}"
        for cause, count in loss["lost_by"].items():
            yield f"  LOST     {place}: {counted(count, 'record')} {_CAUSES[cause]}"
        if loss["lost"]:
            yield f"           {_ranges_in_words(loss['lost'], loss['lost_ranges'])}"
        if loss["undeclared_records"]:
            undeclared = count_in_words(loss["undeclared_records"])
            yield f"           {undeclared} of them not yet declared in a file"
        if loss["skipped_records"]:
            count = counted(loss["skipped_records"], "record")
            yield f"  SKIPPED  {place}: {count} passed over on purpose"
            yield f"           {_ranges_in_words(loss['skipped'], loss['skipped_ranges'])}"
    if bridge["losses_not_shown"]:
        yield f"  and losses of {bridge['losses_not_shown']} more partitions"


def _ranges_in_words(ranges: list[list[int]], total: int) -> str:
    """The latest ranges, ascending, and the number of earlier ones."""
    shown = ranges[-RANGES_SHOWN:]
    text = ", ".join(f"epoch {epoch} offsets {first} to {last}" for epoch, first, last in shown)
    left = total - len(shown)
    return f"{text}; and {count_in_words(left)} earlier ranges" if left > 0 else text


def _log_lines(log: dict[str, Any], rates: dict[str, Any]) -> Iterator[str]:
    disk = log["disk"]
    room = (
        f", {bytes_in_words(disk['used_bytes'])} with {bytes_in_words(disk['free_bytes'])} free"
        if disk
        else ""
    )
    yield (
        f"log      {counted(log['segments'], 'segment')}{room}, {bytes_in_words(log['unsynced_bytes'])} "
        f"not yet synced, {counted(log['records'], 'record')} written since the start"
    )
    if log.get("one_by_one"):
        yield f"  writes wait for each other: no asynchronous I/O: {log['one_by_one']}; see fs.aio-max-nr"
    if log.get("maintenance"):
        yield from _maintenance_lines(log["maintenance"])
    if not log["records"]:
        return
    pace = f"{bytes_in_words(rates['log_record_bytes'])}/s, " if rates.get("log_record_bytes") else ""
    yield (
        f"  {pace}{bytes_in_words(log['bytes_per_sync'])} a sync, of which 99 % take less than "
        f"{micros_in_words(log['fsync']['p99_below_us'])}; durable after less than "
        f"{micros_in_words(log['commit']['p99_below_us'])}; "
        f"{log['written_per_record_byte']:.2f} bytes written for each byte of records"
    )
    reads = log["reads"]
    if reads["log_reads"] or reads["archive_reads"]:
        yield (
            f"  read back: {bytes_in_words(reads['log_bytes'])} from the log, "
            f"{bytes_in_words(reads['archive_bytes'])} from the archive"
        )


def _maintenance_lines(maintenance: dict[str, Any]) -> Iterator[str]:
    states = ", ".join(
        f"{bytes_in_words(n)} {state}" for state, n in maintenance["bytes_by_state"].items() if n
    )
    archive, scrub = maintenance["archive"], maintenance["scrub"]
    ratio = f"; archives are {archive['ratio']:.1f} times smaller" if archive["ratio"] else ""
    disk = (
        "" if maintenance["disk_step"] == "ok" else f"; the disk is nearly full ({maintenance['disk_step']})"
    )
    yield f"  kept: {states or 'nothing'}{ratio}{disk}"
    if scrub["damaged"]:
        yield f"  damage found when read again: {counted(scrub['damaged'], 'place')}"
    for stream, records in maintenance["forced_records"].items():
        yield f"  removed against the rules of stream {stream}: {counted(records, 'record')}"
    for consumer, records in maintenance["unread_records"].items():
        yield f"  removed before {consumer} had them: {counted(records, 'record')}"


def _client_lines(status: dict[str, Any]) -> Iterator[str]:
    for client in status["clients"]:
        dropped = ", ".join(f"{count_in_words(n)} {cause}" for cause, n in client["dropped"].items())
        yield (
            f"  client {client['client_id']}: {'connected' if client['connected'] else 'away'}, "
            f"{client['queued']} queued, {client['in_flight']} in flight, dropped: {dropped or 'none'}"
        )
    if status["clients_not_shown"]:
        yield f"  and {status['clients_not_shown']} more clients"
