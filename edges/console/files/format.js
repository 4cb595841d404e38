// Writes numbers, times and states as people do. The same words as the command's: tenure/cli/formatting.py.

import { stringify } from "./json.js";

const whole = new Intl.NumberFormat("en-US");
const cents = new Intl.NumberFormat("en-US", { style: "currency", currency: "USD" });
const exactMoney = new Intl.NumberFormat("en-US", { style: "currency", currency: "USD", maximumFractionDigits: 9 });

// 12,300
export const number = (value) => whole.format(value ?? 0);

// 1 step, 2 steps, 3 entries
export function count(value, thing, things = `${thing}s`) {
  return `${number(value)} ${value === 1 ? thing : things}`;
}

// $12.35, $0.05, less than $0.01
export function money(usd) {
  const value = usd ?? 0;
  return value > 0 && value < 0.01 ? "less than $0.01" : cents.format(value);
}

export const moneyExact = (usd) => exactMoney.format(usd ?? 0);

// 12 ms, 0.3 s, 41 s, 3 min 20 s, 2 h, 3 days 4 h
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.0995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1).replace(/\.0$/, "")} s`;
  if (seconds < 119.5) return `${Math.round(seconds)} s`;
  const whole_seconds = Math.round(seconds);
  const minutes = Math.floor(whole_seconds / 60);
  if (minutes < 60) return two(minutes, "min", whole_seconds % 60, "s");
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return two(hours, "h", minutes % 60, "min");
  return two(Math.floor(hours / 24), "days", hours % 24, "h");
}

const two = (large, unit, small, smallUnit) => `${large} ${unit}${small ? ` ${small} ${smallUnit}` : ""}`;

// 41 s ago, 3 min ago, in 2 h, just now
export function relative(at, now = Date.now()) {
  if (!at) return "–";
  const seconds = (Date.parse(at) - now) / 1000;
  const size = Math.abs(seconds);
  if (size < 1) return "just now";
  const [length, unit] = [[86400, "days"], [3600, "h"], [60, "min"], [1, "s"]].find(([step]) => size >= 2 * step) ?? [1, "s"];
  const span = `${Math.floor(size / length)} ${unit}`;
  return seconds > 0 ? `in ${span}` : `${span} ago`;
}

// 2026-11-25 03:04:05.678 (local time, with the zone)
export function exact(at) {
  if (!at) return "";
  const date = new Date(at);
  const zone = new Intl.DateTimeFormat("en-US", { timeZoneName: "short" }).formatToParts(date).find((part) => part.type === "timeZoneName");
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${clock(at)}.${String(date.getMilliseconds()).padStart(3, "0")} ${zone?.value ?? ""}`.trim();
}

// 03:04:05 in local time
export function clock(at) {
  if (!at) return "";
  const date = new Date(at);
  return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

const pad = (value) => String(value).padStart(2, "0");

// 512 B, 1.5 KiB, 64 MiB
export function bytes(size) {
  let value = size ?? 0;
  let unit = "B";
  for (const larger of ["KiB", "MiB", "GiB", "TiB"]) {
    if (value < 1024) break;
    value /= 1024;
    unit = larger;
  }
  return unit === "B" || value >= 9.95 ? `${Math.round(value)} ${unit}` : `${value.toFixed(1)} ${unit}`;
}

// The first 13 characters of a UUIDv7 are its millisecond: short, and nearly unique.
export const shortId = (id) => (id ?? "").slice(0, 13);

// 2.8: the generation and the revision of a claim
export function epoch(value) {
  if (!value) return "–";
  const unit = 2 ** 40;
  return `${Math.floor(value / unit)}.${value % unit}`;
}

export const inputTokens = (usage) => (usage?.input_tokens ?? 0) + (usage?.cache_creation_input_tokens ?? 0) + (usage?.cache_read_input_tokens ?? 0);
export const allTokens = (usage) => inputTokens(usage) + (usage?.output_tokens ?? 0);

// 2,310 tokens in (1,900 from the cache), 87 out
export function tokens(usage) {
  const cached = usage?.cache_read_input_tokens ? ` (${number(usage.cache_read_input_tokens)} from the cache)` : "";
  return `${number(inputTokens(usage))} tokens in${cached}, ${number(usage?.output_tokens)} out`;
}

// order="7" cents=500
export function argumentsLine(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return stringify(value) ?? "";
  return Object.entries(value).map(([name, item]) => `${name}=${stringify(item).replaceAll("\\n", "↵")}`).join(" ");
}

export const pretty = (value) => (typeof value === "string" ? value : stringify(value, 2) ?? "");

// One line of at most `width` characters.
export function oneLine(text, width = 200) {
  const flat = String(text ?? "").split(/\s+/).filter(Boolean).join(" ");
  return flat.length <= width ? flat : `${flat.slice(0, width - 1)}…`;
}

// UPPER_SNAKE as words: worker lost
export const words = (name) => String(name ?? "").toLowerCase().replaceAll("_", " ");

// What a step of an escalation does. `step`: with the names of the contract.
export function stepWords({ assignee, queue, priority, close_out, approver, remind_webhook }) {
  if (assignee) return `assigned to ${assignee}`;
  if (queue) return `goes on in queue ${queue}`;
  if (priority) return `goes on with priority ${words(priority).replace("priority ", "")}`;
  if (approver) return `${approver} may answer too`;
  if (remind_webhook) return `a reminder to the webhook ${remind_webhook}`;
  return close_out ? "the task is closed out" : "reported";
}

export const sentence = (text) => (text ? text[0].toUpperCase() + text.slice(1) : "");
