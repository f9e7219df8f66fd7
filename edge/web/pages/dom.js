// Elements from code: text is always text, so that no topic, payload or client identifier becomes markup.

// Characters that change the direction of text would show a name as another one.
const DIRECTION = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

function visible(child) {
  if (typeof child !== "string") return child;
  return child.replace(DIRECTION, (one) => `\\u${one.charCodeAt(0).toString(16)}`);
}

export function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  const shown = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  element.append(...shown.map(visible));
  return element;
}

// Replaces the content, and keeps the focus on the element with the same data-key.
export function replace(container, ...children) {
  const focused = container.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  container.replaceChildren(...children.flat(Infinity).filter((child) => child));
  if (focused !== undefined) {
    for (const element of container.querySelectorAll("[data-key]")) {
      if (element.dataset.key === focused) { element.focus({ preventScroll: true }); break; }
    }
  }
}

export function card(title, tools, ...body) {
  return h("section", { class: "card", "aria-label": title },
    h("header", null, h("h2", null, title), tools), ...body);
}

export function facts(entries) {
  return h("dl", { class: "facts" },
    entries.filter((entry) => entry).map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
}

export function figures(entries) {
  return h("dl", { class: "figures" }, entries.map(([name, value, unit, kind]) =>
    h("div", { class: "figure" }, h("dt", null, name),
      h("dd", { class: kind ? `${kind}-text` : null }, value, unit ? h("small", null, ` ${unit}`) : null))));
}

export function meter(ratio, label) {
  const inner = h("div");
  inner.style.width = `${Math.min(Math.max(ratio, 0), 1) * 100}%`;
  return h("div", { class: ratio > 0.9 ? "meter high" : "meter", role: "meter", "aria-label": label,
    "aria-valuenow": Math.round(ratio * 100), "aria-valuemin": 0, "aria-valuemax": 100 }, inner);
}

export function notice(text, kind) {
  return h("p", { class: kind ? `notice ${kind}` : "notice", role: kind === "bad" ? "alert" : "note" }, text);
}

export function later(work, delayMs) {
  let timer = 0;
  return (...values) => { clearTimeout(timer); timer = setTimeout(() => work(...values), delayMs); };
}
