// Log lines: the newest lines of the broker's log, with level, search and pause. Keeps KEPT lines.
import { get, may } from "./api.js";
import { card, h, later, notice } from "./dom.js";
import { count, moment, printable } from "./format.js";

const KEPT = 1000;
const LEVELS = ["debug", "info", "warning", "error"];

export function page() {
  if (!may("operator")) {
    return { element: notice("The log lines name users and addresses: they are shown to the role operator."), refresh: async () => {} };
  }
  let lines = [], last = 0, skipped = 0, paused = false;
  const list = h("ol", { class: "tap lines mono", tabindex: 0, "aria-label": "Log lines" });
  const state = h("span", { class: "muted small", role: "status" });
  const level = h("select", { "aria-label": "Lowest level", onchange: drawAll },
    LEVELS.map((name) => h("option", { value: name, selected: name === "info" }, name)));
  const text = h("input", { type: "search", placeholder: "part of a line", "aria-label": "Search lines", oninput: later(drawAll, 150) });
  const button = h("button", { type: "button", onclick: () => { paused = !paused; drawState(); } }, "Pause");
  const element = card("Log lines of the broker", h("div", { class: "row push" }, level, text, button),
    h("div", { class: "pager" }, state), list);

  const isShown = (line) => {
    const rank = LEVELS.indexOf(line.level), wanted = text.value.toLowerCase();
    return (rank < 0 || rank >= LEVELS.indexOf(level.value)) && (line.message.toLowerCase().includes(wanted) || line.logger.includes(wanted));
  };

  function drawState() {
    const left = skipped ? `, ${count(skipped)} skipped` : "";
    state.textContent = `${paused ? "paused" : "live"}, ${count(list.childElementCount)} of ${count(lines.length)} lines${left}`;
    button.textContent = paused ? "Continue" : "Pause";
  }

  function drawAll() {
    list.replaceChildren(...lines.filter(isShown).reverse().map(item));
    drawState();
  }

  async function refresh() {
    for (let more = !paused; more;) {
      const answer = await get("log-lines", { after: last });
      more = answer.more;
      last = answer.last;
      skipped += answer.skipped;
      lines = [...lines, ...answer.lines].slice(-KEPT);
      list.prepend(...answer.lines.filter(isShown).reverse().map(item));
    }
    while (list.childElementCount > KEPT) list.lastElementChild.remove();
    drawState();
  }
  return { element, refresh };
}

function item(line) {
  const text = line.exception ? `${line.message}\n${line.exception}` : line.message;
  return h("li", null,
    h("span", { class: "muted", title: line.logger }, moment(line.time_ns / 1e9)),
    h("span", { class: line.level }, line.level),
    h("span", { class: "message" }, h("span", { class: "muted" }, `${line.logger}: `), text.split("\n").map(printable).join("\n")));
}
