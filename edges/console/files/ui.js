// Parts that all pages use: times that stay right, announcements, dialogs, and buttons that say why they are disabled.

import { append, fill, h, setText } from "./dom.js";
import { exact, relative } from "./format.js";

// Times.

// 3 min ago, with the exact time on hover.
export function timeMark(at, { dash = "–" } = {}) {
  if (!at) return h("span.dim", dash);
  return h("time", { datetime: at, title: exact(at), "data-relative": true }, relative(at));
}

export function updateTime(element, at) {
  if (element.getAttribute("datetime") === at) return;
  element.setAttribute("datetime", at);
  element.setAttribute("title", exact(at));
  setText(element, relative(at));
}

setInterval(() => {
  if (document.hidden) return;
  for (const element of document.querySelectorAll("time[data-relative]")) setText(element, relative(element.dateTime));
  for (const element of document.querySelectorAll("[data-since]")) element.dispatchEvent(new CustomEvent("tick"));
}, 1000);

// Announcements: polite, at most one in two seconds; what came in between is summed up.

const ANNOUNCE_MS = 2000;
let waiting = [];
let announcing = false;

export function announce(text) {
  waiting.push(text);
  if (announcing) return;
  announcing = true;
  sayNext();
}

function sayNext() {
  if (waiting.length === 0) {
    announcing = false;
    return;
  }
  const said = waiting.length > 3 ? `${waiting.length} changes; the last: ${waiting.at(-1)}` : waiting.join(". ");
  waiting = [];
  setText(document.getElementById("live"), said);
  setTimeout(sayNext, ANNOUNCE_MS);
}

// A short message at the edge of the page, also announced.
export function notice(text, tone = "ok") {
  const element = h(`div.notice.${tone}`, text, h("button.plain", { type: "button", "aria-label": "Close", onclick: () => element.remove() }, "×"));
  document.getElementById("foot").append(element);
  announce(text);
  setTimeout(() => element.remove(), tone === "bad" ? 20_000 : 6000);
}

// What the person reads of a failed call.
export function errorText(error) {
  const later = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
  return `${error.message}${error.code ? ` (${error.code})` : ""}${later}`;
}

// `retry` is offered where it may help: not for what the caller asked wrongly.
export function errorBox(error, retry) {
  const box = h("div.box.bad", { role: "alert" }, h("p", errorText(error)));
  const isFinal = error.status >= 400 && error.status < 500 && ![408, 425, 429].includes(error.status);
  if (retry && !isFinal) append(box, [h("button", { type: "button", onclick: retry }, "Try again")]);
  return box;
}

// Permissions.

const PERMISSIONS = {
  READ: "read",
  WRITE: "submit, cancel and send messages",
  APPROVE: "answer waits",
  TENANT_ADMIN: "administer the tenant",
  OPERATE: "operate the installation",
};
let granted = null;

export function usePermissions(permissions) {
  granted = permissions ? new Set(permissions) : null;
}

export const may = (permission) => granted === null || granted.has(permission);

export const lacking = (permission) => `You may not: it needs the permission ${permission}, to ${PERMISSIONS[permission]}.`;

// A button. With a permission that the viewer lacks it is disabled and says why, to the pointer and to a screen reader.
export function button(label, { needs = "READ", why = "", tone = "", onclick, title = "", type = "button", key = "" } = {}) {
  const reason = may(needs) ? why : lacking(needs);
  const element = h(`button${tone ? `.${tone}` : ""}`, { type, title: reason || title || null, "data-key-hint": key || null }, label);
  if (reason) {
    element.setAttribute("aria-disabled", "true");
    element.append(h("span.unseen", ` (disabled: ${reason})`));
  }
  element.addEventListener("click", (event) => {
    if (reason) {
      event.preventDefault();
      event.stopImmediatePropagation();
      notice(reason, "warn");
      return;
    }
    onclick?.(event);
  });
  return element;
}

// Runs a change once: the button is busy until the answer, and the error is shown beside it.
export async function changing(element, work) {
  if (element.getAttribute("aria-busy") === "true") return undefined;
  element.setAttribute("aria-busy", "true");
  try {
    return await work();
  } catch (error) {
    notice(errorText(error), "bad");
    return undefined;
  } finally {
    element.removeAttribute("aria-busy");
  }
}

// Dialogs.

// Opens a dialog with a form. build(form) adds its fields; submit(data, form) does the work, and its error stays in the
// dialog. Resolves to what submit returned, or undefined if the dialog was closed.
export function dialog(title, { build, submit, confirm = "OK", tone = "primary", cancel = "Cancel", wide = false }) {
  return new Promise((resolve) => {
    const error = h("p.error", { role: "alert" });
    const buttons = h("div.buttons", h("button", { type: "button", onclick: () => element.close() }, cancel));
    const send = submit ? h(`button.${tone}`, { type: "submit" }, confirm) : null;
    append(buttons, [send]);
    const body = h("div.fields");
    const form = h("form", { novalidate: false }, h("h2", { id: "dialog-title" }, title), body, error, buttons);
    const element = h(wide ? "dialog.wide" : "dialog", { "aria-labelledby": "dialog-title" }, form);
    let result;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (!submit || send.getAttribute("aria-busy") === "true") return;
      send.setAttribute("aria-busy", "true");
      setText(error, "");
      try {
        result = await submit(new FormData(form), form);
        element.close();
      } catch (failure) {
        setText(error, errorText(failure));
      } finally {
        send.removeAttribute("aria-busy");
      }
    });
    element.addEventListener("close", () => {
      element.remove();
      resolve(result);
    });
    build?.(body, element);
    document.body.append(element);
    element.showModal();
  });
}

let fields = 0;

// A labelled control: field("Reason", h("input", {name: "reason"}), "It is recorded.")
export function field(label, control, help = "") {
  fields += 1;
  control.id ||= `field-${fields}`;
  if (!help) return h("div.field", h("label", { for: control.id }, label), control);
  control.setAttribute("aria-describedby", `${control.id}-help`);
  return h("div.field", h("label", { for: control.id }, label), control, h("p.help", { id: `${control.id}-help` }, help));
}

// Facts: a list of names and values.
export function facts(...pairs) {
  return h("dl.facts", pairs.filter(Boolean).map(([name, ...value]) => h("div", h("dt", name), h("dd", value))));
}

// A table with one record a row. columns: [{name, class, cell(item)}].
export function table(caption, columns) {
  const body = h("tbody");
  const head = h("tr", columns.map((column) => h(`th${column.class ? `.${column.class}` : ""}`, { scope: "col" }, column.name)));
  const element = h("div.table", { tabindex: null }, h("table", h("caption.unseen", caption), h("thead", head), body));
  return { element, body };
}

export function row(columns, item, { class: name = "" } = {}) {
  const cells = columns.map((column) => h(`td${column.class ? `.${column.class}` : ""}`, column.cell(item)));
  for (const cell of cells) if (cell.classList.contains("wrap")) cell.title = cell.textContent; // It may be cut.
  return h(`tr${name}`, cells);
}

export function emptyText(element, text) {
  return fill(element, h("p.empty", text));
}

// Long text of tasks: the beginning, and the rest on demand.
export function longText(text, limit = 2000) {
  const shown = String(text ?? "");
  if (shown.length <= limit) return h("pre", shown);
  const pre = h("pre", `${shown.slice(0, limit)}…`);
  const more = h("button.plain", { type: "button" }, `Show all ${shown.length.toLocaleString("en-US")} characters`);
  more.addEventListener("click", () => {
    fill(pre, shown);
    more.remove();
  });
  return h("div", pre, more);
}

// Calls `work` again and again. Returns the function that ends that.
export function every(milliseconds, work) {
  const timer = setInterval(work, milliseconds);
  return () => clearInterval(timer);
}

// Calls `work` at most once in `milliseconds`, and a last time after the last call.
export function throttled(milliseconds, work) {
  let timer = null;
  let again = false;
  const run = () => {
    timer = setTimeout(() => {
      timer = null;
      if (again) {
        again = false;
        run();
      }
    }, milliseconds);
    work();
  };
  const call = () => {
    if (timer === null) run();
    else again = true;
  };
  call.cancel = () => {
    clearTimeout(timer);
    timer = null;
    again = false;
  };
  return call;
}
