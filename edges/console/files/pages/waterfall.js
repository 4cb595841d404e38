// The waterfall of a task: the rows of /v1/tasks/{id}/trace as bars on one scale of time.

import { api, path } from "../api.js";
import { fill, h, keyed, setText } from "../dom.js";
import { clock, count, duration, exact, pretty } from "../format.js";
import { errorBox, facts, throttled } from "../ui.js";

const REFRESH_MS = 3000;
const TICKS = 4;
const HIDDEN = ["gen_ai.conversation.id", "gen_ai.operation.name", "tenure.tenant"];

export class Waterfall {
  constructor(taskId) {
    this.taskId = taskId;
    this.message = h("div");
    this.scale = h("div.scale", { "aria-hidden": "true" });
    this.list = h("div.spans");
    this.legend = h("p.dim.legend", [["MODEL", "model"], ["TOOL", "tool"], ["STEP", "step"], ["WAIT", "no worker, or a wait"], ["MOMENT", "event"]].map(([kind, word]) => h("span.span", { "data-kind": kind }, h("span.track", h("span.bar")), word)));
    this.foot = h("p.dim", { "data-since": true });
    this.element = h("div.waterfall", { hidden: true }, this.message, this.scale, this.list, this.legend, this.foot);
    this.read = throttled(REFRESH_MS, () => this.#read());
    this.foot.addEventListener("tick", () => this.trace?.rows.some((row) => !row.ended_at) && this.#draw());
  }

  // Draws it from now on, or no more. It is read again with each change while it is shown.
  show(isShown) {
    this.element.hidden = !isShown;
    if (isShown) this.read();
    else this.read.cancel();
  }

  changed() {
    if (!this.element.hidden) this.read();
  }

  // One after the other: the gateway reads the ledgers of the whole tree for each.
  async #read() {
    if (this.isReading) {
      this.isStale = true;
      return;
    }
    this.isReading = true;
    try {
      this.trace = await api.get(path`/v1/tasks/${this.taskId}/trace`);
      fill(this.message);
      this.#draw();
    } catch (error) {
      fill(this.message, errorBox(error, () => this.read()));
    }
    this.isReading = false;
    if (!this.isStale) return;
    this.isStale = false;
    this.changed();
  }

  #draw() {
    const { rows, spans, more } = this.trace;
    const end = (row) => (row.ended_at ? Date.parse(row.ended_at) : Math.max(Date.now(), Date.parse(row.started_at)));
    const from = Math.min(...rows.map((row) => Date.parse(row.started_at)));
    const total = Math.max(1, Math.max(...rows.map(end)) - from);
    const byId = new Map(spans.map((span) => [span.span_id, span]));
    const known = new Map();
    // Two moments of one span may have one time.
    for (const row of rows) {
      const key = `${row.span_id} ${row.kind} ${row.started_at}`;
      known.set(row, `${key} ${known.set(key, (known.get(key) ?? 0) + 1).get(key)}`);
    }
    keyed(this.list, rows, (row) => known.get(row), makeRow, (element, row) => {
      const { bar, name, took, body } = element.parts;
      const start = Date.parse(row.started_at);
      const part = (end(row) - start) / total;
      bar.style.left = `${(100 * (start - from)) / total}%`;
      bar.style.width = `${100 * part}%`;
      element.dataset.kind = row.kind;
      element.className = `span${row.failed ? " failed" : ""}${row.ended_at ? "" : " open"}`;
      setText(name, ["MODEL", "TOOL"].includes(row.kind) ? row.text.replace(/^\S+ /, "") : row.text); // The colour says which.
      name.title = row.text;
      setText(took, row.kind === "MOMENT" ? `at ${duration((start - from) / 1000)}` : duration((end(row) - start) / 1000));
      element.detail = () => detail(row, byId.get(row.span_id), this.taskId);
      if (element.open) fill(body, element.detail());
    });
    fill(this.scale, h("span"), h("span.ticks", Array.from({ length: TICKS }, (_, at) => h("span", duration((total * at) / TICKS / 1000)))), h("span"));
    setText(this.foot, rows.length === 0 ? "Nothing has happened yet." : `${count(spans.length, "span")}, ${duration(total / 1000)}${more ? "; the oldest are shown, and not all sub-agents" : ""}`);
  }
}

function makeRow(row) {
  const bar = h("span.bar");
  const [name, took, body] = [h("span.name"), h("span.took.num"), h("div.span-body")];
  name.style.paddingLeft = `${row.depth * 12}px`;
  const element = h("details.span", h("summary", { "data-row": true }, name, h("span.track", bar), took), body);
  element.addEventListener("toggle", () => element.open && fill(body, element.detail()));
  return Object.assign(element, { parts: { bar, name, took, body } });
}

function detail(row, span, taskId) {
  const { "tenure.task.id": ofTask, ...attributes } = span.attributes;
  return facts(
    ["Began", `${clock(row.started_at)} `, h("span.dim", exact(row.started_at))],
    ofTask !== taskId && ["Sub-agent", h("a", { href: `#/tasks/${encodeURIComponent(ofTask)}` }, ofTask)],
    ...Object.entries(attributes).filter(([name]) => !HIDDEN.includes(name)).map(([name, value]) => [name, pretty(value)]),
  );
}
