// Log and disk: segments, syncs with their times, use of the disk, maintenance.
import { get } from "./api.js";
import { card, facts, figures, h, meter, notice, replace } from "./dom.js";
import { bytes, count, micros, percent } from "./format.js";
import { table } from "./table.js";

export function page() {
  const element = h("div");

  async function refresh() {
    const { log, rates, missing } = await get("log");
    if (!log) {
      replace(element, notice("No stream has a log: set durability to interval, disk or upstream in a [[stream]]."));
      return;
    }
    const timing = (name, title) => log[name] && { title, ...log[name] };
    const times = [timing("fsync", "Sync of the disk"), timing("write", "Write"), timing("commit", "Commit to durable")].filter(Boolean);
    replace(element,
      missing.map((one) => notice(`${one.key} ${one.path} was removed or replaced; ${one.remedy}`, "bad")),
      log.failures > 0 && notice(`The log cannot be written: ${log.reason}`, "bad"),
      log.read_only && notice("The disk is nearly full, and the log takes no records. Free space.", "bad"),
      figures([
        ["Records", count(rates?.records_per_s ?? 0), "/s"], ["Not yet synced", bytes(log.unsynced_bytes)],
        ["Segments", count(log.segments)], ["Syncs", count(log.syncs)],
        ["Bytes per sync", bytes(log.bytes_per_sync)], ["Failures", count(log.failures), "", log.failures ? "bad" : ""],
      ]),
      h("div", { class: "grid" },
        log.disk && card("Disk", null, h("div", { class: "body" }, diskFacts(log))),
        card("Log", null, h("div", { class: "body" }, facts([
          log.directory && ["Directory", log.directory],
          ["Written", `${bytes(log.written_bytes)} for ${bytes(log.record_bytes)} of records`],
          ["Damaged places", count(log.damaged_places)],
          ["Lost records", count(log.lost_records)],
          ["Read back", `${bytes(log.reads.log_bytes)} from the log, ${bytes(log.reads.archive_bytes)} from the archive`],
          log.maintenance?.trouble && ["Maintenance", log.maintenance.trouble],
        ])))),
      card("Times", null, table("Times", [
        { title: "Step", text: (row) => row.title },
        { title: "Count", text: (row) => count(row.count), number: true },
        { title: "Mean", text: (row) => micros(row.mean_us), number: true },
        { title: "Half below", text: (row) => micros(row.p50_below_us), number: true, optional: true },
        { title: "99 % below", text: (row) => micros(row.p99_below_us), number: true },
        { title: "Longest", text: (row) => micros(row.max_us), number: true },
      ], times)));
  }
  return { element, refresh };
}

function diskFacts(log) {
  const { disk_bytes: disk, free_bytes: free, used_bytes: own } = log.disk;
  const used = disk ? (disk - free) / disk : 0;
  return facts([
    ["Used", h("span", { class: "row" }, meter(used, "used of the disk"), percent(used))],
    ["Free", `${bytes(free)} of ${bytes(disk)}`],
    ["Taken by the log", bytes(own)],
  ]);
}
