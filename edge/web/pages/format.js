// Numbers, sizes and times as people read them.

export function count(value) {
  if (value === null || value === undefined) return "-";
  const size = Math.abs(value);
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) {
      const scale = name === "k" ? 1e3 : unit;
      return `${trim(value / scale)} ${name}`;
    }
  }
  if (size !== 0 && size < 10 && !Number.isInteger(value)) return String(Number(value.toPrecision(2)));
  return Math.round(value).toLocaleString("en");
}

// A number and its noun: 1 file, 2 files.
export function counted(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

function trim(value) {
  return Math.abs(value) >= 100 ? value.toFixed(0) : Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(2);
}

// A measured value, with five digits.
export function measure(value) {
  if (typeof value !== "number") return "-";
  return Math.abs(value) >= 1e5 ? count(value) : String(Number(value.toPrecision(5)));
}

export function bytes(value) {
  if (value === null || value === undefined) return "-";
  for (const [unit, name] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (Math.abs(value) >= unit) return `${trim(value / unit)} ${name}`;
  }
  return `${Math.round(value)} B`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export function micros(value) {
  return value < 1000 ? `${Math.round(value)} µs` : value < 1e6 ? `${trim(value / 1000)} ms` : `${trim(value / 1e6)} s`;
}

export function ago(seconds) {
  return seconds ? duration(Math.max(Date.now() / 1000 - seconds, 0)) : "-";
}

const pad = (value, width = 2) => String(value).padStart(width, "0");

export function clock(seconds, precise) {
  const at = new Date(seconds * 1000);
  const text = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  return precise ? `${text}.${pad(at.getMilliseconds(), 3)}` : text;
}

export function moment(seconds) {
  if (!seconds) return "-";
  const at = new Date(seconds * 1000);
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${clock(seconds)}`;
}

export const percent = (ratio) => `${Math.round(ratio * 100)} %`;

// Text of base64 bytes; bytes that are no text are shown in hexadecimal digits.
export function valueText(base64) {
  if (base64 === null || base64 === undefined) return "";
  const binary = atob(base64);
  const data = Uint8Array.from(binary, (character) => character.charCodeAt(0));
  try {
    return printable(new TextDecoder("utf-8", { fatal: true }).decode(data));
  } catch {
    return [...data.slice(0, 64)].map((byte) => pad(byte.toString(16))).join(" ");
  }
}

// Control and direction characters as escapes: a payload cannot change the look of other text.
export function printable(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
    (character) => `\\u${pad(character.charCodeAt(0).toString(16), 4)}`);
}

export function payloadText(message) {
  return message.encoding === "base64" ? valueText(message.payload) : printable(message.payload);
}
