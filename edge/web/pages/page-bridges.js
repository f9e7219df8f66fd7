// Bridges: condition, lag, losses, the reason of a block with its remedy; pause, resume, skip.
import { get, may, post } from "./api.js";
import { confirm, toast } from "./dialogs.js";
import { card, facts, h, notice, replace } from "./dom.js";
import { bytes, count, counted, duration } from "./format.js";
import { table } from "./table.js";

const KINDS = { draining: "good", idle: "good", paused: "warn", retrying: "warn", starting: "warn", blocked: "bad", failed: "bad", stopped: "bad" };

export function page() {
  const element = h("div");
  let shown = "";

  async function refresh() {
    const { bridges } = await get("bridges");
    const content = JSON.stringify([bridges, may("operator"), may("admin")]);
    if (content === shown) return;
    shown = content;
    replace(element, bridges.length ? bridges.map((bridge) => draw(bridge, refresh))
      : notice("No bridge runs here. A [[bridge]] of the configuration drains records to files, an object store or another broker."));
  }
  return { element, refresh };
}

function draw(bridge, refresh) {
  const command = (title, text, action, path, danger) => h("button", {
    type: "button", class: danger ? "danger" : null, "data-key": `${path}-${bridge.name}`,
    onclick: () => confirm(title, text, action, async () => {
      const answer = await post(`bridge/${path}`, { bridge: bridge.name });
      toast(answer.effects.join("; ") || `${action}: done`);
      await refresh();
    }, danger) }, action);
  const tools = h("div", { class: "row push" },
    may("operator") && bridge.condition !== "paused" && command("Pause the bridge?", `${bridge.name} drains nothing until it is resumed. Records wait in ring and log.`, "Pause", "pause"),
    may("operator") && command("Resume the bridge?", `${bridge.name} drains again: after a pause, during a back-off, or when the cause of a block is removed.`, "Resume", "resume"),
    may("admin") && command("Skip waiting records?", `${bridge.name} passes over ${count(bridge.lag_records)} records. They are never drained; this cannot be undone.`, "Skip records", "skip", true));
  const lost = Object.entries(bridge.lost_by).map(([cause, number]) => `${count(number)} ${cause}`).join(", ");
  return card(bridge.name, [h("span", { class: `pill ${KINDS[bridge.condition] ?? ""}` }, bridge.condition), tools],
    h("div", { class: "body" },
      bridge.last_error && notice(bridge.remedy ? `${bridge.last_error}; ${bridge.remedy}` : bridge.last_error,
        ["blocked", "failed"].includes(bridge.condition) ? "bad" : ""),
      bridge.stalled_s > 0 && notice(`Records wait, and none was drained for ${duration(bridge.stalled_s)}.`, "bad"),
      facts([
        ["To", h("span", { class: "mono" }, bridge.to)],
        ["Rate", `${count(bridge.rate)} records/s, ${bytes(bridge.bytes_s)}/s by the last files`],
        ["Lag", `${counted(bridge.lag_records, "record")}, ${bytes(bridge.lag_bytes)}, the oldest for ${duration(bridge.lag_s)}`],
        ["Drained", `${counted(bridge.totals.records, "record")} in ${counted(bridge.totals.files, "file")}, ${bytes(bridge.totals.bytes)}`],
        ["Last acknowledgement", bridge.last_ack_age_s === null ? "none yet" : `${duration(bridge.last_ack_age_s)} ago`],
        bridge.buffer_left_s !== null && ["Buffer lasts", duration(bridge.buffer_left_s)],
        ["Lost", lost ? h("span", { class: "bad-text" }, lost) : "nothing"],
        bridge.skipped_records > 0 && ["Skipped", `${count(bridge.skipped_records)} records`],
        bridge.totals.rescued_records > 0 && ["Do not fit the payload schema", count(bridge.totals.rescued_records)],
        bridge.totals.dead_letters > 0 && ["Dead letters", count(bridge.totals.dead_letters)],
      ])),
    bridge.partitions.length > 0 && table(`Partitions of ${bridge.name}`, [
      { title: "Partition", text: (row) => `${row.stream}-${row.partition}` },
      { title: "Next offset", text: (row) => row.next_offset.toLocaleString("en"), number: true },
      { title: "Lag", text: (row) => count(row.lag_records), number: true },
      { title: "Oldest", text: (row) => duration(row.lag_s), number: true, optional: true },
      { title: "Error", text: (row) => row.error, kind: "wrap" },
    ], bridge.partitions));
}
