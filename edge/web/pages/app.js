// Start of the pages: navigation, session, and the clock that refreshes the page in view.
import { get, loadSession, logOut, session } from "./api.js";
import { failed, signIn, textOf } from "./dialogs.js";
import { h, notice, replace } from "./dom.js";
import { duration } from "./format.js";

const PAGES = [
  ["overview", "Overview"], ["clients", "Clients"], ["topics", "Topics"], ["tap", "Live tap"], ["sql", "SQL"],
  ["streams", "Streams"], ["log", "Log and disk"], ["bridges", "Bridges"], ["consumers", "Consumers"],
  ["publish", "Publish"], ["settings", "Configuration"], ["lines", "Log lines"],
];
const REFRESH_MS = 2000;
const view = document.getElementById("view");
let page = null;     // { element, refresh(), stop() } of the page in view
let number = 0;      // of the navigation: a slow page must not replace a later one
let timer = 0;
let refreshing = false;

function drawNavigation(current) {
  replace(document.getElementById("nav"), PAGES.map(([name, title]) =>
    h("a", { href: `#/${name}`, "aria-current": name === current ? "page" : null, "data-key": name }, title)));
  document.querySelector("#nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

function drawUser() {
  const place = document.getElementById("user");
  if (!session.login) {
    replace(place, h("span", { class: "muted small", title: "start with --users to allow changes" }, "read only"));
  } else if (session.user) {
    replace(place, h("span", { class: "small who" }, `${session.user}, ${session.role} `),
      h("button", { type: "button", "data-key": "out", onclick: () => logOut().then(begin, failed) }, "Sign out"));
  } else {
    replace(place, h("button", { type: "button", class: "main", "data-key": "in", onclick: () => signIn(begin) }, "Sign in"));
  }
}

export function drawState(overview) {
  const state = overview.state ?? {}, troubles = state.troubles ?? [];
  const [kind, text] = overview.error ? ["bad", "broker unreachable"]
    : troubles.some((one) => one.blocks) ? ["bad", "clients affected"]
    : troubles.length ? ["warn", "needs attention"] : state.pid ? ["good", "running"] : ["", "starting"];
  const place = document.getElementById("state");
  if (place.textContent !== text) replace(place, h("span", { class: `pill ${kind}` }, text));
  if (state.pid) {
    document.getElementById("edge").textContent =
      `${state.edge_id}, version ${state.version}, up ${duration(state.uptime_s)}`;
    document.title = `${state.edge_id} - Brim`;
  }
}

async function navigate() {
  const mine = ++number;
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const entry = PAGES.find(([one]) => one === name) ?? PAGES[0];
  page?.stop?.();
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  page = null;
  drawNavigation(entry[0]);
  document.getElementById("title").textContent = entry[1];
  if (!session.reads) {
    replace(view, notice("Sign in to see this broker."));
    return;
  }
  const module = await import(`./page-${entry[0]}.js`);
  if (mine !== number) return;
  page = module.page(rest.map(decodeURIComponent));
  replace(view, page.element);
  await refresh();
}

async function refresh() {
  clearTimeout(timer);
  const mine = number;
  if (page && !document.hidden && !refreshing) {
    refreshing = true;
    try {
      await page.refresh();
      if (mine === number) view.querySelector(":scope > .notice.bad")?.remove();
      if (page && !page.isOverview) drawState(await get("overview", { since: Number.MAX_SAFE_INTEGER }));
    } catch (error) {
      if (mine === number) showError(error);
    }
    refreshing = false;
    if (mine !== number) return refresh();
  }
  timer = setTimeout(refresh, REFRESH_MS);
}

function showError(error) {
  if (!(error.status >= 0)) throw error;
  const text = textOf(error);
  const shown = view.querySelector(":scope > .notice.bad");
  if (shown?.textContent !== text) {
    shown?.remove();
    view.prepend(notice(text, "bad"));
  }
  if (error.status === 0) drawState({ error: text });
}

async function begin() {
  try {
    await loadSession();
  } catch (error) {
    replace(view, notice(error.message, "bad"));
    setTimeout(begin, REFRESH_MS);
    return;
  }
  drawUser();
  await navigate();
  if (session.login && !session.user) signIn(begin);
}

addEventListener("hashchange", () => {
  navigate();
  document.getElementById("main").focus({ preventScroll: true });
});
addEventListener("sessionend", begin);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();  // its target is no page
  document.getElementById("main").focus();
});
document.addEventListener("visibilitychange", () => document.hidden || refresh());
begin();
