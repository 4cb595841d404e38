// The keyboard: / searches, j and k move, Enter opens, g and a letter changes the page, ? shows the keys.

import { h } from "./dom.js";
import { dialog } from "./ui.js";

const PAGES = { t: "#/tasks", a: "#/approvals", d: "#/in-doubt", e: "#/effects", g: "#/aging", w: "#/workers", s: "#/schedules", h: "#/webhooks", u: "#/usage", l: "#/audit" };
const KEYS = [
  ["/", "search"],
  ["j, k", "next and previous row"],
  ["Enter", "open the row"],
  ["g t", "tasks"],
  ["g a", "approvals"],
  ["g d", "calls in doubt"],
  ["g e", "effects"],
  ["g g", "aged work and leases near their end"],
  ["g w", "workers and queues"],
  ["g s", "schedules"],
  ["g h", "webhooks"],
  ["g u", "usage"],
  ["g l", "audit log"],
  ["e", "on a task: the end of the timeline"],
  ["Esc", "close a dialog, leave a field"],
  ["?", "these keys"],
];
let sequence = 0;

export function listenForKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    const isTyping = event.target.closest("input, textarea, select, [contenteditable]");
    if (isTyping) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (Date.now() < sequence) {
      sequence = 0;
      if (PAGES[event.key]) {
        event.preventDefault();
        location.hash = PAGES[event.key];
        return;
      }
    }
    const action = { "/": search, j: () => move(1), k: () => move(-1), g: begin, "?": showKeys, e: toEnd }[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  });
}

const begin = () => {
  sequence = Date.now() + 1500;
};

function search() {
  const field = document.querySelector("#main [data-search]");
  field?.focus();
  field?.select();
}

function toEnd() {
  document.querySelector("#main [data-end]")?.scrollIntoView({ block: "end" });
}

// Rows are links or buttons with data-row: Enter opens them as it opens any.
function move(by) {
  const rows = [...document.querySelectorAll("#main [data-row]")];
  if (rows.length === 0) return;
  const at = rows.indexOf(document.activeElement);
  const next = at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by));
  rows[next].focus();
  rows[next].scrollIntoView({ block: "nearest" });
}

export function showKeys() {
  dialog("Keys", {
    cancel: "Close",
    build: (body) => body.append(h("dl.keys", KEYS.map(([key, does]) => h("div", h("dt", h("kbd", key)), h("dd", does))))),
  });
}
