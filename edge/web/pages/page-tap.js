// Live tap: messages as they pass, with a filter, a pause, and a bound for the rows that are kept.
import { ApiError, follow } from "./api.js";
import { failed } from "./dialogs.js";
import { card, h } from "./dom.js";
import { bytes, clock, count, payloadText } from "./format.js";

const KEPT = 500;

export function page() {
  let stopping = null, live = false, shown = 0, skipped = 0;
  const list = h("ol", { class: "tap mono", tabindex: 0, "aria-label": "Messages" });
  const state = h("span", { class: "muted small", role: "status" });
  const filter = h("input", { value: "#", "aria-label": "Topic filter", class: "mono", size: 28 });
  const button = h("button", { type: "submit", class: "main" }, "Start");
  const form = h("form", { class: "row push" }, filter, button,
    h("button", { type: "button", onclick: () => { list.replaceChildren(); shown = skipped = 0; draw(); } }, "Clear"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (stopping) stop(); else start();
  });
  const element = card("Messages as they pass", form, h("div", { class: "pager" }, state), list);

  function draw() {
    const left = skipped ? `, ${count(skipped)} skipped: the rate is above what a page shows` : "";
    state.textContent = `${live ? "live" : stopping ? "connecting" : "stopped"}, ${count(shown)} messages${left}`;
    button.textContent = stopping ? "Pause" : "Start";
  }

  function show(answer) {
    if (answer.error) failed(new ApiError(409, answer.error));
    live = stopping !== null;
    skipped += answer.skipped;
    shown += answer.messages.length;
    list.prepend(...answer.messages.reverse().map((one) => h("li", null,
      h("span", { class: "muted" }, clock(one.timestamp_ns / 1e9, true)),
      h("span", { class: "qos" }, `QoS ${one.qos}${one.retain ? " R" : ""}`),
      h("span", { class: "size number" }, bytes(one.size_bytes)),
      h("span", { class: "topic", title: one.topic }, one.topic),
      h("span", { class: "payload" }, payloadText(one).slice(0, 400)))));
    while (list.childElementCount > KEPT) list.lastElementChild.remove();
    draw();
  }

  async function start() {
    const mine = stopping = new AbortController();
    draw();
    try {
      while (!mine.signal.aborted) await follow("tap", { filter: filter.value }, mine.signal, show);
    } catch (error) {
      if (error.name !== "AbortError") failed(error);
    }
    if (stopping === mine) stop();
  }

  function stop() {
    stopping?.abort();
    stopping = null;
    live = false;
    draw();
  }

  start();
  return { element, stop, refresh: async () => {} };
}
