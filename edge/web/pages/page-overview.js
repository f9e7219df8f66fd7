// Overview: figures, live charts, losses and troubles.
import { get } from "./api.js";
import { drawState } from "./app.js";
import { Chart } from "./chart.js";
import { card, figures, h, replace } from "./dom.js";
import { bytes, count } from "./format.js";
import { table } from "./table.js";

const KEPT = 1800;
const SPANS = { "2 min": 120, "10 min": 600, "1 h": 3600 };

export function page() {
  let last = 0, samples = [], span = 600;
  const perSecond = (value) => count(value);
  const charts = [
    new Chart("Messages per second", [{ name: "in", key: "in", color: 1 }, { name: "out", key: "out", color: 2 }], perSecond),
    new Chart("Bytes per second", [{ name: "in", key: "bytes_in", color: 1 }, { name: "out", key: "bytes_out", color: 2 }], bytes, 1024),
    new Chart("Lag in records", [{ name: "readers", key: "reader_lag", color: 1 },
      { name: "bridges", key: "bridge_lag", color: 2 }, { name: "consumers", key: "consumer_lag", color: 3 }], count),
    new Chart("Lost messages per second", [{ name: "lost", key: "lost", color: 5 }], perSecond),
    new Chart("Connections", [{ name: "connected", key: "connections", color: 4 }], count),
    new Chart("Log records per second", [{ name: "written", key: "log_records", color: 6 }], perSecond),
  ];
  const troubles = h("div"), numbers = h("div"), losses = h("div");
  const choice = h("select", { "aria-label": "Time shown", onchange: (event) => { span = SPANS[event.target.value]; show(); } },
    Object.keys(SPANS).map((name) => h("option", { selected: SPANS[name] === span }, name)));
  const element = h("div", null, troubles, numbers,
    h("p", { class: "row small muted tools-row" }, h("label", null, "Time shown ", choice)),
    h("div", { class: "grid" }, charts.map((chart) => chart.element)), losses);

  function show() {
    const begin = (samples.at(-1)?.time_s ?? 0) - span;
    const shown = samples.filter((row) => row.time_s >= begin);
    for (const chart of charts) chart.show(shown);
  }

  function showState(state) {
    const found = state.troubles ?? [];
    const serious = found.some((one) => one.blocks);
    replace(troubles, found.length && h("div", { class: serious ? "notice bad" : "notice", role: serious ? "alert" : "note" },
      h("strong", null, found.length === 1 ? "One part needs attention" : `${found.length} parts need attention`),
      h("ul", null, found.map((one) => h("li", null, h("b", null, one.part), `: ${one.why}`)))));
    if (!state.rates) return;
    const lost = Object.values(state.lost).reduce((sum, one) => sum + one.count, 0);
    replace(numbers, figures([
      ["Messages in", count(state.rates.published + state.rates.from_producers), "/s"],
      ["Messages out", count(state.rates.delivered), "/s"],
      ["Connected", count(state.connections), `of ${count(state.sessions)} sessions`],
      ["Topics", count(state.topics), `${count(state.retained)} retained`],
      ["Queued", bytes(state.queued_bytes)],
      ["Lost", count(lost), "since the start", lost ? "bad" : ""],
    ]));
    const rows = Object.entries(state.lost).map(([cause, one]) => ({ cause, ...one }));
    replace(losses, card("Losses since the start", null, table("Losses", [
      { title: "Place and cause", text: (row) => row.cause },
      { title: "Messages", text: (row) => count(row.count), number: true },
      { title: "Per second", text: (row) => count(row.rate), number: true },
    ], rows, null, null, "no message was lost")));
  }

  return {
    element,
    isOverview: true,
    stop: () => charts.forEach((chart) => chart.stop()),
    async refresh() {
      const answer = await get("overview", { since: last });
      if (answer.number < last) samples = [];  // another console process
      last = answer.number;
      samples = [...samples, ...answer.samples].slice(-KEPT);
      drawState(answer);
      showState(answer.state);
      show();
      if (answer.error) throw Object.assign(new Error(answer.error), { status: 503, hint: "" });
    },
  };
}
