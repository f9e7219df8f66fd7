// Line chart on a canvas: several series over time, with axes, a legend with the last values, and a cursor for
// pointer and keyboard.
import { h } from "./dom.js";
import { clock } from "./format.js";

const LEFT = 52, RIGHT = 10, TOP = 10, BOTTOM = 20;

export class Chart {
  // series: [{ name, key, color: 1..6 }]; points are rows with time_s and the keys.
  // `base`: of the steps of the axis, 1024 for bytes.
  constructor(title, series, text, base = 10) {
    this.base = base;
    this.series = series;
    this.text = text;
    this.rows = [];
    this.cursor = null;
    this.canvas = h("canvas", { role: "img", tabindex: 0, "aria-label": title });
    this.tip = h("div", { class: "tip", hidden: true });
    this.legend = h("div", { class: "legend" });
    this.title = title;
    this.element = h("section", { class: "card", "aria-label": title },
      h("header", null, h("h2", null, title)),
      h("div", { class: "body" }, this.legend, h("div", { class: "chart" }, this.canvas, this.tip)));
    this.canvas.addEventListener("pointermove", (event) => this.#point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.#leave());
    this.canvas.addEventListener("blur", () => this.#leave());
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    this.redraw = () => this.draw();
    addEventListener("themechange", this.redraw);
    this.observer = new ResizeObserver(this.redraw);
    this.observer.observe(this.canvas);
  }

  stop() {
    removeEventListener("themechange", this.redraw);
    this.observer.disconnect();
  }

  show(rows) {
    this.rows = rows;
    const last = rows.at(-1);
    this.legend.replaceChildren(...this.series.map((one) => h("span", null,
      h("i", { class: `s${one.color}` }), `${one.name} `, h("b", null, last ? this.text(last[one.key]) : "-"))));
    const values = last ? this.series.map((one) => `${one.name} ${this.text(last[one.key])}`).join(", ") : "no data yet";
    this.canvas.setAttribute("aria-label", `${this.title}: ${values}`);
    this.draw();
  }

  draw() {
    const width = this.canvas.clientWidth, height = this.canvas.clientHeight, scale = devicePixelRatio || 1;
    if (!width) return;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(this.canvas);
    pen.font = `11px ${style.fontFamily}`;
    const low = Math.min(0, ...this.#all(Math.min)), top = nice(Math.max(...this.#all(Math.max), low + 1e-9), low, this.base);
    const rows = this.rows, begin = rows[0]?.time_s ?? 0, end = Math.max(rows.at(-1)?.time_s ?? 1, begin + 1);
    this.x = (time) => LEFT + (time - begin) / (end - begin) * (width - LEFT - RIGHT);
    const y = (value) => height - BOTTOM - (value - low) / (top - low) * (height - TOP - BOTTOM);
    pen.fillStyle = style.getPropertyValue("--muted");
    pen.strokeStyle = style.getPropertyValue("--line");
    pen.lineWidth = 1;
    for (let step = 0; step <= 4; step++) {
      const value = low + (top - low) * step / 4, at = Math.round(y(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(LEFT, at);
      pen.lineTo(width - RIGHT, at);
      pen.stroke();
      pen.textAlign = "right";
      pen.fillText(this.text(value), LEFT - 6, at + 4);
    }
    if (rows.length > 1) {
      pen.textAlign = "left";
      pen.fillText(clock(begin), LEFT, height - 5);
      pen.textAlign = "right";
      pen.fillText(clock(end), width - RIGHT, height - 5);
    } else {
      pen.textAlign = "center";
      pen.fillText("waiting for data", (LEFT + width) / 2, height / 2);
    }
    for (const one of this.series) this.#line(pen, one, y, style, height);
    this.#cursor(pen, y, style, height);
  }

  #all(choose) {
    return this.series.map((one) => this.rows.reduce((found, row) =>
      typeof row[one.key] === "number" ? choose(found, row[one.key]) : found, 0));
  }

  #line(pen, one, y, style, height) {
    const color = style.getPropertyValue(`--series-${one.color}`);
    const drawn = this.rows.filter((row) => typeof row[one.key] === "number");
    if (drawn.length < 2) return;
    pen.beginPath();
    drawn.forEach((row, index) => pen[index ? "lineTo" : "moveTo"](this.x(row.time_s), y(row[one.key])));
    pen.strokeStyle = color;
    pen.lineWidth = 1.8;
    pen.lineJoin = "round";
    pen.stroke();
    if (this.series.length < 3) {
      pen.lineTo(this.x(drawn.at(-1).time_s), height - BOTTOM);
      pen.lineTo(this.x(drawn[0].time_s), height - BOTTOM);
      pen.globalAlpha = 0.1;
      pen.fillStyle = color;
      pen.fill();
      pen.globalAlpha = 1;
    }
  }

  #cursor(pen, y, style, height) {
    const row = this.cursor === null ? undefined : this.rows[this.cursor];
    this.tip.hidden = row === undefined;
    if (!row) return;
    const at = this.x(row.time_s);
    pen.beginPath();
    pen.moveTo(at, TOP);
    pen.lineTo(at, height - BOTTOM);
    pen.strokeStyle = style.getPropertyValue("--muted");
    pen.lineWidth = 1;
    pen.stroke();
    const text = this.series.map((one) => `${one.name} ${this.text(row[one.key])}`).join("  ");
    this.tip.textContent = `${clock(row.time_s)}  ${text}`;
    const half = this.tip.offsetWidth / 2;
    this.tip.style.left = `${Math.min(Math.max(at - half, 0), this.canvas.clientWidth - 2 * half)}px`;
  }

  #point(offset) {
    if (!this.rows.length || !this.x) return;
    let best = 0;
    this.rows.forEach((row, index) => {
      if (Math.abs(this.x(row.time_s) - offset) < Math.abs(this.x(this.rows[best].time_s) - offset)) best = index;
    });
    this.cursor = best;
    this.draw();
  }

  #leave() {
    this.cursor = null;
    this.draw();
  }

  #key(event) {
    const last = this.rows.length - 1, now = this.cursor ?? last;
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.cursor = Math.min(Math.max(next, 0), last);
    this.draw();
    this.canvas.setAttribute("aria-label", `${this.title}: ${this.tip.textContent}`);
  }
}

// The end of an axis, so that quarters are round: 1, 2, 4 ... times a power of the base.
function nice(value, low, base) {
  const span = value - low;
  if (span <= 1e-6) return low + 1;
  const power = base ** Math.floor(Math.log(span) / Math.log(base) + 1e-9);
  const factors = base === 10 ? [1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10] : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
  return low + (factors.find((factor) => factor * power >= span) ?? base) * power;
}
