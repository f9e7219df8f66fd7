// Streams: rings with fill level, rate, and their readers with lag and losses.
import { get } from "./api.js";
import { card, h, meter, replace } from "./dom.js";
import { bytes, count, duration, percent } from "./format.js";
import { table } from "./table.js";

function retention(stream) {
  if (!stream) return "";
  if (!stream.is_logged) return "memory";
  const limits = [stream.retain_bytes && bytes(stream.retain_bytes), stream.retain_s && duration(stream.retain_s)];
  return limits.filter(Boolean).join(" or ") || "as [log]";
}

export function page() {
  const rings = h("div"), readers = h("div");
  const element = h("div", null, rings, readers);

  async function refresh() {
    const answer = await get("streams");
    const streams = Object.fromEntries(answer.streams.map((stream) => [stream.name, stream]));
    replace(rings, card("Rings", null, table("Rings", [
      { title: "Ring", text: (row) => h("b", null, row.name), kind: "nowrap" },
      { title: "Topics", text: (row) => (streams[row.stream]?.topics ?? []).join("  "), kind: "mono wrap", optional: true },
      { title: "Durability", text: (row) => row.durability ?? `producer ${row.producer}`, kind: "nowrap" },
      { title: "When full", text: (row) => streams[row.stream]?.when_full ?? "", kind: "nowrap", optional: true },
      { title: "Retention", text: (row) => retention(streams[row.stream]), kind: "nowrap", optional: true },
      { title: "Rate", text: (row) => `${count(row.rate)}/s`, number: true },
      { title: "Next offset", text: (row) => row.end_offset.toLocaleString("en"), number: true, optional: true },
      { title: "Used", text: (row) => level(row.bytes / row.capacity_bytes, `used of ${row.name}`, ` of ${bytes(row.capacity_bytes)}`) },
      { title: "Unread", text: (row) => level(row.unread_ratio, `unread of ${row.name}`) },
    ], answer.rings)));
    const rows = answer.rings.flatMap((ring) => ring.readers.map((reader) => ({ ...reader, ring: ring.name })));
    rows.sort((one, other) => other.lag - one.lag);
    replace(readers, card("Readers", null, table("Readers", [
      { title: "Reader", text: (row) => h("b", null, row.name || "reader") },
      { title: "Ring", text: (row) => row.ring, kind: "nowrap" },
      { title: "Process", text: (row) => String(row.pid), number: true, optional: true },
      { title: "State", text: (row) => row.state, optional: true },
      { title: "Lag", text: (row) => count(row.lag), number: true },
      { title: "Lost", text: (row) => row.lost ? h("span", { class: "bad-text" }, count(row.lost)) : "0", number: true },
    ], rows, null, null, "no reader")));
  }
  return { element, refresh };
}

function level(ratio, label, whole = "") {
  return h("span", { class: "row" }, meter(ratio, label), h("span", { class: "small nowrap" }, percent(ratio) + whole));
}
