// Configuration: every setting in effect, and reload.
import { get, may, post } from "./api.js";
import { confirm, toast } from "./dialogs.js";
import { card, h, notice, replace } from "./dom.js";
import { table } from "./table.js";

export function page() {
  if (!may("viewer")) {
    return { element: notice("The configuration is shown to signed-in users: start the console with users."), refresh: async () => {} };
  }
  const list = h("div");
  let settings = [];
  const text = h("input", { type: "search", placeholder: "part of a name", "aria-label": "Search settings", oninput: draw });
  const changed = h("input", { type: "checkbox", checked: true, onchange: draw });
  const reload = may("admin") && h("button", { type: "button", onclick: () => confirm("Reload the configuration?",
    "The broker reads its configuration file, passwords, rules and certificates again. What has a mistake is not applied.", "Reload", async () => {
      const answer = await post("reload");
      toast(`in force: ${answer.applied.join(", ") || "there are no changes"}`);
      if (answer.failed.length) toast(`not applied: ${answer.failed.join("; ")}`, "bad");
      if (answer.needs_restart.length) toast(`needs a restart: ${answer.needs_restart.join(", ")}`);
      await read();
    }) }, "Reload");
  const element = card("Configuration in effect", h("div", { class: "row push" },
    h("label", { class: "row small" }, changed, "only what is not the default"), text, reload), list);

  function draw() {
    const shown = settings.filter((row) => row.name.includes(text.value) && !(changed.checked && row.is_default));
    replace(list, table("Settings", [
      { title: "Setting", text: (row) => h("b", { class: "mono" }, row.name) },
      { title: "Value", text: (row) => typeof row.value === "string" ? row.value : JSON.stringify(row.value), kind: "mono wrap" },
      { title: "Source", text: (row) => row.is_default ? "default" : "configured", optional: true },
    ], shown, null, null, "no setting matches"));
  }

  async function read() {
    settings = (await get("settings")).settings;
    draw();
  }

  return { element, refresh: async () => { if (!settings.length) await read(); } };
}
