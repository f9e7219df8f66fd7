// Tables: sortable columns, and pages of rows that the server chooses.
import { h, replace } from "./dom.js";

// columns: { title, text(row) -> text or element, sort: name or nothing, number, optional }.
export function table(title, columns, rows, sort, onSort, empty) {
  const head = columns.map((column) => {
    const kinds = [column.number && "number", column.optional && "optional"].filter(Boolean).join(" ");
    const sorted = column.sort !== undefined && column.sort === sort;
    return h("th", { scope: "col", class: kinds || null, "aria-sort": sorted ? (column.number ? "descending" : "ascending") : null },
      column.sort === undefined ? column.title
        : h("button", { type: "button", "data-key": `sort-${column.sort}`, onclick: () => onSort(column.sort) }, column.title));
  });
  const body = rows.map((row) => h("tr", null, columns.map((column) => {
    const kinds = [column.number && "number", column.optional && "optional", column.kind].filter(Boolean).join(" ");
    return h("td", { class: kinds || null }, column.text(row));
  })));
  if (!rows.length) body.push(h("tr", null, h("td", { colspan: columns.length, class: "muted" }, empty ?? "none")));
  return h("div", { class: "scroll", role: "region", "aria-label": title, tabindex: 0 },
    h("table", { "aria-label": title }, h("thead", null, h("tr", null, head)), h("tbody", null, body)));
}

export const PAGE = 100;

// State of a paged listing: first row, sort column. `changed` is called after a change by the user.
export class Pager {
  constructor(sort, changed) {
    this.first = 0;
    this.sort = sort;
    this.changed = changed;
    this.element = h("div", { class: "pager" });
  }

  reset() {
    this.first = 0;
  }

  sortBy(sort) {
    this.sort = sort;
    this.first = 0;
    this.changed();
  }

  show(total, noun) {
    if (this.first >= total && this.first > 0) this.first = Math.max(0, Math.floor((total - 1) / PAGE) * PAGE);
    const end = Math.min(this.first + PAGE, total);
    const number = (value) => value.toLocaleString("en");
    const text = total ? `${number(this.first + 1)} to ${number(end)} of ${number(total)} ${noun}` : "";
    replace(this.element, h("span", null, text),
      total > PAGE && h("button", { type: "button", "data-key": "back", disabled: this.first === 0, onclick: () => this.#go(-PAGE) }, "Back"),
      total > PAGE && h("button", { type: "button", "data-key": "next", disabled: end >= total, onclick: () => this.#go(PAGE) }, "Next"));
  }

  #go(step) {
    this.first = Math.max(0, this.first + step);
    this.changed();
  }
}
