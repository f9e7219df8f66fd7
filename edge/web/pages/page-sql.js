// SQL: a query on the records, its rows as a table, and as CSV.
import { post, session } from "./api.js";
import { card, h, notice, replace } from "./dom.js";
import { duration, printable } from "./format.js";
import { table } from "./table.js";

const EXAMPLE = `SELECT topic, count(*) AS messages, max(timestamp) AS newest
FROM records GROUP BY topic ORDER BY messages DESC LIMIT 20`;
const SHOWN = 400;  // characters of a value; its title and the CSV have all
const kept = { user: "", query: EXAMPLE };  // until the user changes

export function page() {
  if (kept.user !== session.user) Object.assign(kept, { user: session.user, query: EXAMPLE });
  let running = null, answer = null;
  const query = h("textarea", { class: "mono query", spellcheck: "false", maxlength: 8192, required: true, value: kept.query,
    "aria-label": "Query", oninput: () => { kept.query = query.value; } });
  const topic = h("input", { class: "mono", placeholder: "plant/#", maxlength: 1024 });
  const since = h("input", { class: "mono", placeholder: "-1h", maxlength: 64 });
  const until = h("input", { class: "mono", placeholder: "now", maxlength: 64 });
  const run = h("button", { class: "main", title: "Ctrl and Enter" }, "Run");
  const cancel = h("button", { type: "button", disabled: true, onclick: stop }, "Cancel");
  const save = h("button", { type: "button", disabled: true, onclick: () => download(answer) }, "Download CSV");
  const state = h("span", { class: "muted small", role: "status" });
  const result = h("div");
  const form = h("form", { class: "form wide" }, query,
    h("div", { class: "row" }, h("label", null, "Topic filter", topic), h("label", null, "Since", since), h("label", null, "Until", until)),
    h("div", { class: "row" }, run, cancel, save, state));
  form.addEventListener("submit", (event) => { event.preventDefault(); start(); });
  query.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); form.requestSubmit(); }
  });

  async function start() {
    if (running) return;
    const mine = running = new AbortController();
    answer = null;
    replace(result);
    draw("running");
    try {
      answer = await post("sql", { query: query.value, topic: topic.value, since: since.value, until: until.value }, mine.signal);
      replace(result, answer.warning && notice(answer.warning), rowsTable(answer));
      done(mine, `${answer.rows.length.toLocaleString("en")} rows in ${duration(answer.seconds)}${answer.is_cut ? "; the rest is cut" : ""}`);
    } catch (error) {
      if (!(error.status >= 0) && error.name !== "AbortError") throw error;
      if (error.status >= 0) replace(result, h("pre", { class: "notice bad", role: "alert" }, [error.message, error.hint].filter(Boolean).join("\n")));
      done(mine, error.status >= 0 ? "failed" : "cancelled");
    }
  }

  function done(mine, text) {
    if (running !== mine) return;
    running = null;
    draw(text);
  }

  function draw(text) {
    state.textContent = text;
    run.disabled = running !== null;
    cancel.disabled = running === null;
    save.disabled = !answer?.rows.length;
  }

  function stop() {
    running?.abort();
  }

  return { element: h("div", null, card("Query", null, h("div", { class: "body" }, form)), result), stop, refresh: async () => {} };
}

function rowsTable({ columns, rows }) {
  const shown = columns.map((title, number) => ({
    title: printable(title), kind: "value mono",
    number: rows.every((row) => row[number] === null || /^-?\d+$/.test(row[number]) || typeof row[number] === "number"),
    text: (row) => cell(row[number]),
  }));
  return card("Rows", null, table("Rows of the query", shown, rows, null, null, "no rows"));
}

function cell(value) {
  if (value === null) return h("span", { class: "muted" }, "NULL");
  const text = printable(plain(value));
  return text.length <= SHOWN ? h("span", { title: text }, text) : h("span", { title: text }, `${text.slice(0, SHOWN)}...`);
}

const plain = (value) => typeof value === "object" ? JSON.stringify(value) : String(value);

// A text that a spreadsheet would take for a formula gets a quote in front: payloads come from devices.
function field(value) {
  if (value === null) return "";
  const text = plain(value);
  const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
  return /[",\r\n']/.test(safe) || safe === "" ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function download({ columns, rows }) {
  const text = [columns, ...rows].map((row) => row.map(field).join(",")).join("\r\n");
  const url = URL.createObjectURL(new Blob([text, "\r\n"], { type: "text/csv" }));
  h("a", { href: url, download: "records.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
