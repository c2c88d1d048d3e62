// Decodes and orders events, in Node.js and in a browser.
import { decode } from "@msgpack/msgpack";

// The first byte shows whether a payload is MessagePack or JSON. A 64-bit integer that a number can't hold becomes a string.
export function payloadOf(bytes) {
  if (bytes[0] === 0x7b || bytes[0] === 0x5b) {
    return JSON.parse(new TextDecoder().decode(bytes));
  }
  return plain(decode(bytes, { useBigInt64: true }));
}

function plain(value) {
  if (typeof value === "bigint") {
    return Number.isSafeInteger(Number(value)) ? Number(value) : value.toString();
  }
  if (Array.isArray(value)) {
    return value.map(plain);
  }
  if (value instanceof Uint8Array) {
    // The form of bytea in JSON.
    return btoa(String.fromCharCode(...value));
  }
  if (value !== null && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, plain(item)]));
  }
  return value;
}

// Whether position a (an event's tx) is after position b; everything is after undefined.
export function isAfter(a, b) {
  return b === undefined || a.lsn > b.lsn || (a.lsn === b.lsn && a.seq > b.seq);
}
