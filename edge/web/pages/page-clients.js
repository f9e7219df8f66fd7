// Clients: every MQTT client and session, page by page, with details, disconnect and forget.
import { get, may, post } from "./api.js";
import { confirm, failed, open, toast } from "./dialogs.js";
import { card, facts, h, later, replace } from "./dom.js";
import { ago, count, duration, moment } from "./format.js";
import { PAGE, Pager, table } from "./table.js";

export function page() {
  let shown = "";
  const list = h("div");
  const refreshSoon = later(() => refresh().catch(failed), 150);
  const pager = new Pager("client", refreshSoon);
  const again = () => { pager.reset(); refreshSoon(); };
  const text = h("input", { type: "search", size: 28, placeholder: "client, user, address or tenant", "aria-label": "Search clients", oninput: again });
  const state = h("select", { "aria-label": "State", onchange: again },
    [["all", "all"], ["connected", "connected"], ["away", "away"], ["dropping", "with losses"]].map(([value, name]) =>
      h("option", { value }, name)));
  const element = card("Clients and sessions", h("div", { class: "row push" }, text, state), list, pager.element);

  async function refresh() {
    const parameters = { first: pager.first, count: PAGE, sort: pager.sort, text: text.value, state: state.value };
    const answer = await get("clients", parameters);
    pager.show(answer.total, answer.total === answer.clients ? "clients" : `of ${count(answer.clients)} clients`);
    const content = JSON.stringify([answer, pager.sort]);
    if (content === shown) return;
    shown = content;
    replace(list, table("Clients", COLUMNS, answer.rows, pager.sort, (sort) => pager.sortBy(sort), "no client matches"));
  }

  const COLUMNS = [
    { title: "Client", sort: "client", text: (row) => h("button", { type: "button", class: "link mono", "data-key": `c-${row.client_id}`,
      onclick: () => details(row.client_id, refreshSoon) }, row.client_id || "(empty)") },
    { title: "State", text: (row) => h("span", { class: row.connected ? "pill good" : "pill" }, row.connected ? `MQTT ${row.protocol}` : "away") },
    { title: "User", sort: "user", text: (row) => row.username ?? "-", optional: true },
    { title: "Tenant", sort: "tenant", text: (row) => row.tenant ?? "-", optional: true },
    { title: "Address", sort: "address", text: (row) => where(row), optional: true, kind: "mono nowrap" },
    { title: "Since", sort: "since", text: (row) => ago(row.since_s), number: true, optional: true },
    { title: "Subscriptions", sort: "subscriptions", text: (row) => count(row.subscriptions), number: true, optional: true },
    { title: "Queued", sort: "queued", text: (row) => count(row.queued), number: true },
    { title: "In flight", sort: "in_flight", text: (row) => count(row.in_flight), number: true, optional: true },
    { title: "Delivered", sort: "delivered", text: (row) => count(row.delivered), number: true, optional: true },
    { title: "Dropped", sort: "dropped", text: (row) => dropped(row), number: true },
  ];

  return { element, refresh };
}

function where(row) {
  return row.transport === "tcp" ? row.address : `${row.transport} ${row.address || "local"}`;
}

function dropped(row) {
  const lost = Object.values(row.dropped).reduce((sum, one) => sum + one, 0);
  const causes = Object.entries(row.dropped).map(([cause, number]) => `${number} ${cause}`).join(", ");
  return lost ? h("span", { class: "bad-text", title: causes }, count(lost)) : "0";
}

async function details(clientId, changed) {
  let row;
  try {
    row = await get("client", { client_id: clientId });
  } catch (error) {
    failed(error);
    return;
  }
  const act = (title, textOf, action, path, done) => confirm(title, textOf, action, async () => {
    await post(path, { client_id: clientId });
    toast(done);
    dialog.close();
    changed();
  }, true);
  const names = [row.username, row.certificate && `certificate ${row.certificate}`].filter(Boolean).join(", ");
  const drops = Object.entries(row.dropped).map(([cause, number]) => `${count(number)} ${cause}`).join(", ");
  const dialog = open(h("div", null,
    h("h2", { id: "dialog-title", class: "mono" }, clientId || "(empty)"),
    facts([
      ["State", row.connected ? `connected by MQTT ${row.protocol}` : "away"],
      ["Since", row.since_s ? `${moment(row.since_s)} (${ago(row.since_s)})` : "-"],
      ["Address", where(row)],
      ["User", names || "none"],
      row.connected && ["Keep alive", row.keep_alive_s ? `${row.keep_alive_s} s` : "none"],
      ["Session", `ends ${row.expiry_s ? duration(row.expiry_s) : "0 s"} after the connection`],
      ["Queue", `${count(row.queued)} queued, ${count(row.in_flight)} in flight`],
      ["Delivered", count(row.delivered)],
      ["Dropped", drops || "none"],
      row.will && ["Will", `${row.will.topic}, QoS ${row.will.qos}`],
    ]),
    h("h3", null, `Subscriptions (${count(row.subscriptions)})`),
    table("Subscriptions", [
      { title: "Filter", text: (one) => one.filter, kind: "mono wrap" },
      { title: "QoS", text: (one) => String(one.qos), number: true },
    ], row.filters, null, null, "no subscription"),
    row.filters_not_shown ? h("p", { class: "muted" }, `and ${count(row.filters_not_shown)} more`) : null,
    h("div", { class: "row end" },
      may("operator") && row.connected && h("button", { type: "button", class: "danger", onclick: () => act("Disconnect the client?",
        `${clientId} is disconnected. Its session stays, and it may connect again.`, "Disconnect", "client/disconnect",
        `${clientId} is disconnected`) }, "Disconnect"),
      may("operator") && h("button", { type: "button", class: "danger", onclick: () => act("Forget the session?",
        `The subscriptions and the queue of ${clientId} are removed. Queued messages are lost for this client.`, "Forget", "client/forget",
        `the session of ${clientId} is removed`) }, "Forget"),
      h("button", { type: "button", onclick: () => dialog.close() }, "Close"))));
}
