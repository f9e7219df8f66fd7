// Consumers: groups with their lag, partitions and offsets; reset and forget.
import { get, may, post } from "./api.js";
import { confirm, failed, open, toast } from "./dialogs.js";
import { card, h, notice, replace } from "./dom.js";
import { count } from "./format.js";
import { table } from "./table.js";

export function page() {
  const element = h("div");
  let shown = "";

  async function refresh() {
    const { consumers } = await get("consumers");
    const content = JSON.stringify([consumers, may("admin")]);
    if (content === shown) return;
    shown = content;
    replace(element, consumers.length ? consumers.map((group) => draw(group, refresh))
      : notice("There is no consumer group. A program joins one by brim.Consumer; see the page on consumer groups."));
  }
  return { element, refresh };
}

function draw(group, refresh) {
  const tools = may("admin") && h("div", { class: "row push" },
    h("button", { type: "button", "data-key": `reset-${group.name}`, onclick: () => reset(group.name, refresh) }, "Reset offsets"),
    h("button", { type: "button", class: "danger", "data-key": `forget-${group.name}`, onclick: () => confirm("Forget the group?",
      `The offsets of ${group.name} are removed. The group must have no running consumers.`, "Forget", async () => {
        await post("group/forget", { group: group.name });
        toast(`${group.name} is forgotten`);
        await refresh();
      }, true) }, "Forget"));
  return card(group.name, [h("span", { class: group.lag ? "pill warn" : "pill good" }, `${count(group.lag)} behind`), tools],
    table(`Partitions of ${group.name}`, [
      { title: "Ring", text: (row) => row.ring },
      { title: "Done below", text: (row) => (row.floor ?? 0).toLocaleString("en"), number: true, optional: true },
      { title: "Lag", text: (row) => count(row.lag), number: true },
      { title: "Handed out", text: (row) => count(row.in_flight), number: true },
    ], group.places, null, null, "no partition"));
}

function reset(group, refresh) {
  const to = h("select", { name: "to" }, [["oldest", "the oldest record"], ["latest", "the next record"], ["offset", "an offset"], ["time", "a time"]]
    .map(([value, name]) => h("option", { value }, name)));
  const offset = h("input", { name: "offset", type: "number", min: 0, value: 0 });
  const time = h("input", { name: "time", type: "datetime-local" });
  const form = h("form", { class: "form", method: "dialog" },
    h("h2", { id: "dialog-title" }, `Reset offsets of ${group}`),
    h("p", { class: "muted" }, "The group must have no running consumers. Records may be delivered again, or passed over."),
    h("label", null, "Continue from", to), h("label", null, "Offset", offset), h("label", null, "Time", time),
    h("div", { class: "row end" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), h("button", { class: "danger" }, "Reset")));
  const choose = () => { offset.disabled = to.value !== "offset"; time.disabled = to.value !== "time"; };
  to.addEventListener("change", choose);
  choose();
  const dialog = open(form, "small");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const value = to.value === "offset" ? Number(offset.value) : to.value === "time" ? new Date(time.value).getTime() * 1e6 : 0;
    try {
      await post("group/reset", { group, to: to.value, value: Math.round(value) });
      toast(`the offsets of ${group} are set`);
      dialog.close();
      await refresh();
    } catch (error) {
      failed(error);
    }
  });
}
