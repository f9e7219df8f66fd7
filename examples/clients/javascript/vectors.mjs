// Check of the JavaScript client's codec and record decoder against tests/golden/consumers/vectors.txt.
//
//     node vectors.mjs FILE

import fs from "node:fs";
import { decode, encode, records } from "./consumer.mjs";

function json(value) {
  if (typeof value === "bigint") return String(value);
  if (Array.isArray(value)) return `[${value.map(json)}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([key, it]) => `${JSON.stringify(key)}:${json(it)}`)}}`;
}

function seenAndWanted(kind, lines) { // of a vector; undefined if it is not for clients
  const begun = (word) => lines.filter((line) => line.startsWith(`${word} `));
  const of = (word) => begun(word).map((line) => line.slice(word.length + 1));
  if (kind === "request" || kind === "answer") {
    const value = decode(Buffer.from(of("msgpack")[0], "hex"));
    return [`${json(value)} ${encode(value).toString("hex")}`, `${of("json")[0]} ${of("msgpack")[0]}`];
  }
  if (kind !== "frame") return undefined;
  const [epoch, offset, count] = ["epoch", "offset", "count"].map((word) => Number(of(word)[0]));
  const shown = ({ offset, timestampNs, flags, topic, payload }) =>
    `${offset} ${timestampNs} ${flags} ${topic} ${payload.toString("hex") || "-"}`;
  const wanted = lines.includes("invalid") ? "invalid" : of("record").join("\n");
  try {
    const found = records(Buffer.from(of("bytes")[0], "hex"), { epoch, offset, count });
    return [found.map(shown).join("\n"), wanted];
  } catch {
    return ["invalid", wanted];
  }
}

function checkVectors(path) {
  let checked = 0;
  for (const stanza of fs.readFileSync(path, "utf8").split(/\n(?=\S)/)) {
    const [title, ...lines] = stanza.split("\n").map((line) => line.trim());
    const pair = seenAndWanted(title.split(" ")[0], lines);
    if (pair && pair[0] !== pair[1]) throw new Error(`${title}:\n  ${pair[0]}\n  instead of ${pair[1]}`);
    checked += pair ? 1 : 0;
  }
  console.log(`${checked} vectors hold`);
}

checkVectors(process.argv[2]);
