// Consumer of a group in JavaScript, with the standard library of Node only.
//
//     node consumer.mjs SOCKET GROUP FILTER COUNT [SPEED]   print COUNT records, acknowledge them, and leave
//
// docs/reference/consumer-protocol.md describes the protocol; SOCKET is consumers.sock in the runtime
// directory. A request is sent each 500 ms or more often, so the member needs no heartbeats of its own. With
// SPEED the members of the group together replay at the original speed times SPEED.

import net from "node:net";
import { fileURLToPath } from "node:url";

const VERSION = 2, HEADER = 32, PROPERTIES = 8, UNCHECKED = 32, FRAME_MAX = 64 << 20;

// ---- msgpack: the types that the protocol uses ----

function integer(value) {
  const number = BigInt(value), buffer = Buffer.alloc(9);
  if (number >= -32n && number < 128n) return Buffer.of(Number(BigInt.asUintN(8, number)));
  for (let index = 0; index < 4; index++) {
    const bits = 8 << index, as = number < 0n ? BigInt.asIntN : BigInt.asUintN;
    if (as(bits, number) !== number) continue;
    buffer.writeBigUInt64BE(BigInt.asUintN(64, number << BigInt(64 - bits)), 1);
    buffer[0] = (number < 0n ? 0xd0 : 0xcc) + index;
    return buffer.subarray(0, 1 + bits / 8);
  }
  throw new RangeError(`${value} has more than 64 bits`);
}

function head(count, fix, fixMax, tags) { // of a string, array or map
  if (count <= fixMax) return Buffer.of(fix | count);
  if (count < 256 && tags[0]) return Buffer.of(tags[0], count);
  if (count < 65536) return Buffer.of(tags[1], count >> 8, count & 255);
  const buffer = Buffer.alloc(5, tags[2]);
  buffer.writeUInt32BE(count, 1);
  return buffer;
}

export function encode(value) {
  if (value === null) return Buffer.of(0xc0);
  if (typeof value === "boolean") return Buffer.of(value ? 0xc3 : 0xc2);
  if (typeof value === "number" || typeof value === "bigint") return integer(value);
  if (typeof value === "string") {
    const text = Buffer.from(value);
    return Buffer.concat([head(text.length, 0xa0, 31, [0xd9, 0xda, 0xdb]), text]);
  }
  if (Array.isArray(value)) {
    return Buffer.concat([head(value.length, 0x90, 15, [0, 0xdc, 0xdd]), ...value.map(encode)]);
  }
  const entries = Object.entries(value);
  return Buffer.concat([head(entries.length, 0x80, 15, [0, 0xde, 0xdf]), ...entries.flat().map(encode)]);
}

export function decode(data) {
  let at = 0;
  const take = (count) => {
    if (at + count > data.length) throw new Error("the message is cut");
    return data.subarray(at, (at += count));
  };
  const count = (bytes) => take(bytes).readUIntBE(0, bytes);
  const array = (count) => Array.from({ length: count }, one);
  const map = (count) => Object.fromEntries(Array.from({ length: count }, () => [one(), one()]));
  const text = (count) => take(count).toString();
  const number = (bits, as) => {
    const value = as(bits, BigInt(`0x${take(bits / 8).toString("hex")}`));
    return Number.isSafeInteger(Number(value)) ? Number(value) : value;
  };
  function one() {
    const tag = take(1)[0];
    if (tag < 0x80) return tag;
    if (tag < 0x90) return map(tag & 15);
    if (tag < 0xa0) return array(tag & 15);
    if (tag < 0xc0) return text(tag & 31);
    if (tag >= 0xe0) return tag - 256;
    if (tag >= 0xcc && tag <= 0xcf) return number(8 << (tag - 0xcc), BigInt.asUintN);
    if (tag >= 0xd0 && tag <= 0xd3) return number(8 << (tag - 0xd0), BigInt.asIntN);
    switch (tag) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xd9: return text(count(1));
      case 0xda: return text(count(2));
      case 0xdb: return text(count(4));
      case 0xdc: return array(count(2));
      case 0xdd: return array(count(4));
      case 0xde: return map(count(2));
      case 0xdf: return map(count(4));
    }
    throw new Error(`msgpack type ${tag} is not part of the protocol`);
  }
  const value = one();
  if (at !== data.length) throw new Error(`${data.length - at} bytes behind the message`);
  return value;
}

// ---- records ----

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, crc) => {
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
  return crc;
});

function crc32c(data, seed) {
  let crc = ~seed;
  for (const byte of data) crc = CRC_TABLE[(crc ^ byte) & 255] ^ (crc >>> 8);
  return ~crc >>> 0;
}

export function records(frame, batch) { // the records of a frame; throws if one is invalid
  const found = [];
  let next = BigInt(batch.offset);
  const end = next + BigInt(batch.count);
  for (let at = 0; at < frame.length;) {
    const length = at + HEADER <= frame.length ? frame.readUInt32LE(at) : 0;
    if (length < HEADER || at + length > frame.length) throw new Error(`record at byte ${at}: wrong length`);
    const record = frame.subarray(at, at + length);
    const offset = record.readBigUInt64LE(8);
    const keyLength = record.readUInt16LE(28), flags = record.readUInt16LE(30);
    let payload = HEADER + keyLength;
    if (flags & PROPERTIES) payload += propertiesLength(record, payload);
    payload = (payload + 7) & ~7;
    const checked = record.subarray(8, flags & UNCHECKED ? payload : length);
    const valid = payload <= length && offset >= next && offset < end;
    if (!valid || crc32c(checked, batch.epoch) !== record.readUInt32LE(4))
      throw new Error(`record at byte ${at}: wrong offset or checksum`);
    found.push({
      offset, flags, timestampNs: record.readBigUInt64LE(16),
      topic: record.toString("utf8", HEADER, HEADER + keyLength), payload: record.subarray(payload),
    });
    next = offset + 1n;
    at += (length + 31) & ~31;
  }
  return found;
}

function propertiesLength(record, at) { // a Variable Byte Integer, and so many bytes
  for (let value = 0, index = 0; index < 4 && at + index < record.length; index++) {
    value |= (record[at + index] & 127) << (7 * index);
    if (record[at + index] < 128) return index + 1 + value;
  }
  throw new Error("properties without a length");
}

// ---- ZMTP 3.1: a DEALER without libzmq ----

function zmtpFrame(content, flags) {
  if (content.length < 256) return Buffer.concat([Buffer.of(flags, content.length), content]);
  const size = Buffer.alloc(9, flags | 2);
  size.writeBigUInt64BE(BigInt(content.length), 1);
  return Buffer.concat([size, content]);
}

class Connection {
  constructor(path) {
    this.socket = net.connect(path);
    this.chunks = this.socket[Symbol.asyncIterator]();
    this.received = Buffer.alloc(0);
    this.number = 0;
  }

  async open() {
    const greeting = Buffer.alloc(64);
    greeting.set([0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 1, ...Buffer.from("NULL")]);
    this.socket.write(greeting);
    await this.take(64);
    this.socket.write(zmtpFrame(Buffer.from("\x05READY\x0bSocket-Type\0\0\0\x06DEALER"), 4));
    await this.frame(); // READY
  }

  async take(count) {
    const parts = [this.received];
    for (let have = this.received.length; have < count;) {
      const { value, done } = await this.chunks.next();
      if (done) throw new Error("the broker has ended the connection");
      parts.push(value);
      have += value.length;
    }
    const all = Buffer.concat(parts);
    this.received = all.subarray(count);
    return all.subarray(0, count);
  }

  async frame() { // its flags and content
    const flags = (await this.take(1))[0];
    const size = flags & 2 ? Number((await this.take(8)).readBigUInt64BE()) : (await this.take(1))[0];
    if (size > FRAME_MAX) throw new Error(`a frame of ${size} bytes`);
    return [flags, await this.take(size)];
  }

  async message() {
    const frames = [];
    for (;;) {
      const [flags, content] = await this.frame();
      if (flags & 4) {
        if (content.toString("latin1", 0, 5) === "\x04PING")
          this.socket.write(zmtpFrame(Buffer.concat([Buffer.from("\x04PONG"), content.subarray(7)]), 4));
        continue;
      }
      frames.push(content);
      if (!(flags & 1)) return frames;
    }
  }

  async request(op, keys) { // the answer and its frames
    const id = ++this.number;
    this.socket.write(zmtpFrame(encode({ op, id, version: VERSION, ...keys }), 0));
    for (;;) {
      const [first, ...frames] = await this.message();
      const answer = decode(first);
      if (answer.id !== id) continue;
      if (answer.op === "failed") throw new Error(`${op}: ${answer.error} (${answer.code ?? "refused"})`);
      return [answer, frames];
    }
  }
}

// ---- the command ----

async function consume(path, group, filter, count, settings) {
  const connection = new Connection(path);
  await connection.open();
  const joining = { group, filters: [filter], start: "oldest", name: "node", settings };
  const [{ member }] = await connection.request("join", joining);
  for (let seen = 0; seen < count;) {
    const fetch = { group, member, max_wait_ms: 500, max_records: count - seen };
    const [{ generation, batches = [] }, frames] = await connection.request("fetch", fetch);
    for (const [index, batch] of batches.entries()) {
      const found = records(frames[index], batch);
      for (const record of found) console.log(`${record.offset} ${record.topic} ${record.payload}`);
      const runs = found.map((record) => [record.offset, 1]);
      const { ring, epoch } = batch;
      const [acked] = await connection.request("ack", { group, member, generation, ring, epoch, runs });
      if (acked.refused) console.error(`${acked.refused} acknowledgements came too late`);
      seen += acked.accepted;
    }
  }
  await connection.request("leave", { group, member });
  connection.socket.end();
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [path, group, filter, count, speed] = process.argv.slice(2);
  const settings = speed === undefined ? {} : { speed_permille: Math.round(speed * 1000) };
  if (count !== undefined) await consume(path, group, filter, Number(count), settings);
  else {
    console.error("usage: node consumer.mjs SOCKET GROUP FILTER COUNT [SPEED]");
    process.exitCode = 2;
  }
}
