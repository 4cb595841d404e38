// JSON whose whole numbers keep all their digits. JavaScript rounds those beyond 2^53, and a person who approves a call
// must read the number that the tool gets.

const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*/g;
const MAY_ROUND = /\d{16}/;
// Not to be guessed: no text of a task is taken for a number.
const MARK = `number ${Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("")} `;
const MARKED = new RegExp(`"${MARK}(-?\\d+)"`, "g");

// A whole number that JavaScript's own numbers cannot hold.
class WholeNumber {
  constructor(digits) {
    this.digits = digits;
  }

  toJSON() {
    return MARK + this.digits;
  }

  toString() {
    return this.digits;
  }
}

const isRounded = (token) => /^-?\d+$/.test(token) && !Number.isSafeInteger(Number(token));

// As JSON.parse.
export function parse(text) {
  if (!MAY_ROUND.test(text)) return JSON.parse(text);
  const marked = text.replace(TOKEN, (token) => (isRounded(token) ? `"${MARK}${token}"` : token));
  if (marked === text) return JSON.parse(text);
  return JSON.parse(marked, (_, value) => (typeof value === "string" && value.startsWith(MARK) ? new WholeNumber(value.slice(MARK.length)) : value));
}

// As JSON.stringify.
export const stringify = (value, indent) => JSON.stringify(value, null, indent)?.replace(MARKED, "$1");
