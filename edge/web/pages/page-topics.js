// Topics: the tree level by level with rates and last values, a search, and a chart of the numbers of a topic.
import { get, may, post } from "./api.js";
import { Chart } from "./chart.js";
import { confirm, failed, open, toast } from "./dialogs.js";
import { card, h, later, notice, replace } from "./dom.js";
import { ago, bytes, clock, count, measure, payloadText, valueText } from "./format.js";
import { PAGE, Pager, table } from "./table.js";

export function page(levels) {
  let shown = "";
  const prefix = levels.join("/");
  const list = h("div"), hint = h("div");
  const refreshSoon = later(() => refresh().catch(failed), 150);
  const pager = new Pager("topic", refreshSoon);
  const search = h("input", { type: "search", placeholder: "part of a topic", "aria-label": "Search topics",
    oninput: () => { pager.reset(); refreshSoon(); } });
  const path = (end) => `#/topics/${levels.slice(0, end).map(encodeURIComponent).join("/")}`;
  const crumbs = h("nav", { class: "crumbs", "aria-label": "Level" },
    h("a", { href: "#/topics" }, "all topics"),
    levels.map((level, index) => [h("span", null, "/"), h("a", { href: path(index + 1), class: "mono" }, level || "(empty)")]));
  const element = h("div", null, hint, card("Topics", [crumbs, h("div", { class: "row push" }, search)], list, pager.element));

  const name = (row) => {
    const text = search.value ? row.topic : row.name || "(empty)";
    const down = row.levels ? h("a", { class: "mono", "data-key": `d-${row.topic}`,
      href: `#/topics/${row.topic.split("/").map(encodeURIComponent).join("/")}` }, `${text}/`) : null;
    const value = row.value !== null ? h("button", { type: "button", class: "link mono", "data-key": `v-${row.topic}`,
      onclick: () => showTopic(row.topic) }, down ? "message" : text) : null;
    return h("span", { class: "row wrap" }, down, value);
  };
  const columns = [
    { title: "Topic", sort: "topic", text: name },
    { title: "Topics", text: (row) => count(row.topics), number: true, optional: true },
    { title: "Messages", sort: "count", text: (row) => count(row.count), number: true, optional: true },
    { title: "Rate", sort: "rate", text: (row) => `${count(row.rate)}/s`, number: true },
    { title: "Age", sort: "age", text: (row) => ago(row.time_ns / 1e9), number: true, optional: true },
    { title: "", text: (row) => row.retained ? h("span", { class: "pill", title: "a retained message" }, "retained") : "", optional: true },
    { title: "Last value", text: (row) => row.value === null ? "" : valueText(row.value).slice(0, 120), kind: "value mono" },
  ];

  async function refresh() {
    const answer = await get("topics", { prefix: search.value ? "" : prefix, text: search.value, first: pager.first, count: PAGE, sort: pager.sort });
    pager.show(answer.total, search.value ? "topics found" : "entries of this level");
    replace(hint,
      answer.error && notice(answer.error, "bad"),
      answer.filling && !answer.error && notice("The topics in memory are being read."),
      answer.others > 0 && notice(`${count(answer.others)} messages of further topics are not shown.`));
    const content = JSON.stringify([answer.rows, pager.sort]);
    if (content === shown) return;
    shown = content;
    replace(list, table("Topics", columns, answer.rows, search.value ? null : pager.sort, (sort) => pager.sortBy(sort), "no topic yet"));
  }
  return { element, refresh };
}

function showTopic(topic) {
  const charts = h("div"), messages = h("div");
  let timer = 0, chart = null, fields = "[]";
  const dialog = open(h("div", null,
    h("h2", { id: "dialog-title", class: "mono" }, topic), charts, messages,
    h("div", { class: "row end" },
      may("operator") && h("button", { type: "button", class: "danger", onclick: () => clear(topic) }, "Clear retained"),
      h("button", { type: "button", onclick: () => dialog.close() }, "Close"))));
  dialog.addEventListener("close", () => { clearTimeout(timer); chart?.stop(); });

  async function refresh() {
    const answer = await get("topic", { topic });
    const names = Object.keys(answer.fields).slice(0, 6);
    if (fields !== JSON.stringify(names)) {
      fields = JSON.stringify(names);
      chart?.stop();
      chart = new Chart("Values", names.map((name, index) => ({ name: name || "value", key: name || "value", color: index + 1 })), measure);
      replace(charts, chart.element);
    }
    chart?.show(merged(answer.fields, names));
    replace(messages, h("h3", null, `Newest messages (${count(answer.count)} in memory)`), table("Messages", [
      { title: "Time", text: (one) => clock(one.timestamp_ns / 1e9, true), kind: "mono" },
      { title: "QoS", text: (one) => `${one.qos}${one.retain ? " retained" : ""}` },
      { title: "Size", text: (one) => bytes(one.size_bytes), number: true, optional: true },
      { title: "Payload", text: (one) => payloadText(one), kind: "mono wrap" },
    ], answer.messages, null, null, "no message in memory"));
    if (dialog.open) timer = setTimeout(() => refresh().catch(failed), 2000);
  }
  refresh().catch(failed);
}

function merged(fields, names) {
  const rows = new Map();
  for (const name of names) {
    for (const [time, value] of fields[name]) {
      if (!rows.has(time)) rows.set(time, { time_s: time });
      rows.get(time)[name || "value"] = value;
    }
  }
  return [...rows.values()].sort((one, other) => one.time_s - other.time_s);
}

function clear(topic) {
  confirm("Clear the retained message?", `Subscribers of ${topic} get an empty message.`, "Clear", async () => {
    const answer = await post("retained/clear", { filter: topic });
    toast(answer.count ? "the retained message is removed" : "there was no retained message");
  }, true);
}
